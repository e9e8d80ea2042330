#include "bench/collectives/all_reducers.h"

#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <stdexcept>

#include "tests/conformance/plugin_under_test.h"

namespace engine::bench {
namespace {

class PluginAllReducer final : public AllReducer {
 public:
  PluginAllReducer(const std::string& path, Host& host) {
    const auto library = test::PluginUnderTest::Load(path);
    ThrowIfError(library.status());
    if (library->header().kind != PluginKind::kCommunicator) {
      throw std::runtime_error(path + " is not a communicator");
    }
    auto created = library->Create<Communicator>(host);
    ThrowIfError(created.status());
    communicator_ = std::move(*created);
    if (communicator_->traits().measures_only) throw std::runtime_error(path + " moves nothing");
  }

  void Prepare(float* data, int64_t count) override {
    transfer_.send = transfer_.recv = data;
    transfer_.count = count;
    transfer_.timeout_ms = kOperationTimeoutMs;
    ++transfer_.key;
  }

  void Run() override {
    Work* work = nullptr;
    ThrowIfError(communicator_->Submit(transfer_, &work));
    ++transfer_.sequence;
    const Status status = work->WaitHost(2 * kOperationTimeoutMs);
    work->Release();
    ThrowIfError(status);
  }

 private:
  std::unique_ptr<Communicator> communicator_;
  Transfer transfer_;
};

template <typename Algorithm>
class GlooAllReducer final : public AllReducer {
 public:
  explicit GlooAllReducer(std::shared_ptr<::gloo::Context> context)
      : context_(std::move(context)) {}

  void Prepare(float* data, int64_t count) override {
    algorithm_ =
        std::make_unique<Algorithm>(context_, std::vector<float*>{data}, static_cast<int>(count));
  }
  void Run() override { algorithm_->run(); }

 private:
  const std::shared_ptr<::gloo::Context> context_;
  std::unique_ptr<Algorithm> algorithm_;
};

// Bcube works in groups of a size that divides the number of ranks.
int SmallestDivisor(int ranks) {
  int divisor = 2;
  while (divisor < ranks && ranks % divisor != 0) ++divisor;
  return divisor;
}

std::shared_ptr<::gloo::Context> ConnectGloo(const RankInfo& ranks,
                                             const std::filesystem::path& folder) {
  auto device = ::gloo::transport::tcp::CreateDevice(::gloo::transport::tcp::attr("127.0.0.1"));
  auto context = std::make_shared<::gloo::rendezvous::Context>(ranks.rank, ranks.world_size,
                                                               SmallestDivisor(ranks.world_size));
  context->setTimeout(std::chrono::milliseconds(kOperationTimeoutMs));
  ::gloo::rendezvous::FileStore store(folder.string());
  context->connectFullMesh(store, device);
  return context;
}

}  // namespace

void ThrowIfError(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

std::vector<std::unique_ptr<AllReducer>> ConnectAll(const std::string& plugin, Host& host,
                                                    const std::filesystem::path& folder) {
  std::vector<std::unique_ptr<AllReducer>> all;
  all.push_back(std::make_unique<PluginAllReducer>(plugin, host));
  const auto context = ConnectGloo(host.rank_info(), folder);
  using Ring = ::gloo::AllreduceRing<float>;
  using HalvingDoubling = ::gloo::AllreduceHalvingDoubling<float>;
  using Bcube = ::gloo::AllreduceBcube<float>;
  all.push_back(std::make_unique<GlooAllReducer<Ring>>(context));
  all.push_back(std::make_unique<GlooAllReducer<HalvingDoubling>>(context));
  all.push_back(std::make_unique<GlooAllReducer<Bcube>>(context));
  return all;
}

}  // namespace engine::bench
