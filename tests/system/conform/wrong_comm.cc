// The communicator tcp, but for the fault that an option names.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/plugin.h"
#include "kit/communicator.h"
#include "kit/options.h"
#include "tcp/collectives.h"
#include "tcp/wire.h"
#include "tcp_kit/communicator.h"

namespace engine::wrong_comm {
namespace {

struct Life {
  std::atomic<bool> aborted{false}, destroyed{false};
};

class WrongTransport final : public kit::Transport {
 public:
  WrongTransport(const RankInfo& ranks, std::string fault, std::shared_ptr<const Life> life,
                 std::unique_ptr<Transport> right)
      : ranks_(ranks), fault_(std::move(fault)), life_(std::move(life)), right_(std::move(right)) {}

  Status Run(kit::PooledWork& work) noexcept override {
    const Transfer& t = work.transfer();
    // As many bytes as a Work that is never given back.
    if (fault_ == "leak") leaked_ = std::malloc(sizeof(kit::PooledWork));
    if (fault_ == "early" && t.kind == TransferKind::kBarrier) {
      work.MarkStarted();
      return {};
    }
    const bool tail = t.count % 8 == 5;  // a fault that few sizes show
    const bool sums = fault_ == "sum" && tail && t.kind == TransferKind::kAllReduce &&
                      t.dtype == DType::kFloat32 && t.reduction == Reduction::kSum;
    const auto* const send = static_cast<const float*>(t.send);
    const std::vector<float> own(send, sums ? send + t.count : send);
    const Status status = right_->Run(work);
    if (!status.ok() && fault_ == "abort" && life_->aborted) life_->destroyed.wait(false);
    ENGINE_RETURN_IF_ERROR(status);
    for (size_t i = 0; ranks_.rank == 1 && i < own.size(); ++i) {
      static_cast<float*>(t.recv)[i] -= own[i];
    }
    const bool misses = fault_ == "root" && tail && t.kind == TransferKind::kBroadcast &&
                        t.root != 0 && t.root != ranks_.rank;
    if (misses) std::memset(t.recv, 0, kit::SizeBytes(t));
    return {};
  }
  int32_t WaitingFor() const noexcept override { return right_->WaitingFor(); }

 private:
  const RankInfo ranks_;
  const std::string fault_;
  const std::shared_ptr<const Life> life_;
  const std::unique_ptr<Transport> right_;
  void* volatile leaked_ = nullptr;
};

class WrongComm final : public CommunicatorBase {
 public:
  WrongComm(std::shared_ptr<Life> life, std::unique_ptr<tcp::TcpCommunicator> right)
      : life_(std::move(life)), right_(std::move(right)) {}
  ~WrongComm() override {
    life_->destroyed = true;
    life_->destroyed.notify_all();
  }
  CommunicatorTraits traits() const noexcept override { return right_->traits(); }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    return right_->Submit(transfer, out);
  }
  void Abort(const Status& reason) noexcept override {
    life_->aborted = true;
    right_->Abort(reason);
  }

 private:
  const std::shared_ptr<Life> life_;
  const std::unique_ptr<tcp::TcpCommunicator> right_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::CreateCommunicator(
      host, "wrong_comm", out, [&]() -> Result<std::unique_ptr<WrongComm>> {
        const auto life = std::make_shared<Life>();
        const auto make_lane = [&](tcp::Connections& connections, int lane,
                                   kit::Progress& progress) {
          return std::make_unique<WrongTransport>(
              connections.ranks(), std::string(options.String("fault")), life,
              std::make_unique<tcp::Collectives>(connections, lane, progress));
        };
        const tcp::NetworkSettings network{.plugin = "wrong_comm",
                                           .send_buffer_bytes = tcp::kWindowBytes};
        ENGINE_ASSIGN_OR_RETURN(auto right, tcp::TcpCommunicator::Create(host, network, make_lane));
        return std::make_unique<WrongComm>(life, std::move(right));
      });
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = FIXTURE_NAME,
                    .version = "1.0.0",
                    .kind = PluginKind::kCommunicator,
                    .doc = "right but for one fault",
                    .create = Create},
                   NoOps(), std::array{kit::StringOption("fault", "", "see the code")});

}  // namespace engine::wrong_comm
