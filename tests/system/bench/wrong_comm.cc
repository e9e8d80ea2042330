// A communicator that claims to work and is wrong in one element: the last one of this rank's
// result is what the rank itself has sent, the rest is right because all ranks send the same
// multiples.
#include <cstring>
#include <new>

#include "engine/plugin.h"

namespace engine::wrong_comm {
namespace {

class DoneWork final : public WorkBase {
 public:
  WorkState state() const noexcept override { return WorkState::kDone; }
  int64_t started_ns() const noexcept override { return 0; }
  Status WaitHost(int64_t) noexcept override { return {}; }
  Status WaitStream(Stream*) noexcept override { return {}; }
  void OnDone(void (*callback)(void*), void* context) noexcept override { callback(context); }
  void Release() noexcept override { delete this; }
};

// Knows what the benchmark sends: rank r has (r + 1) times what rank 0 has.
class WrongCommunicator final : public CommunicatorBase {
 public:
  explicit WrongCommunicator(const RankInfo& info) : info_(info) {}

  CommunicatorTraits traits() const noexcept override {
    return {.kinds = Bit(TransferKind::kAllReduce), .dtypes = Bit(DType::kFloat32)};
  }

  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    const auto* send = static_cast<const float*>(transfer.send);
    auto* recv = static_cast<float*>(transfer.recv);
    const auto ranks = static_cast<float>(info_.world_size);
    const float factor = ranks * (ranks + 1) / 2 / static_cast<float>(info_.rank + 1);
    for (int64_t i = 0; i < transfer.count; ++i) {
      const bool last = i == transfer.count - 1 && transfer.count > 100;
      recv[i] = send[i] * (last ? 1 : factor);
    }
    *out = new (std::nothrow) DoneWork;
    return {};
  }

  void Abort(const Status&) noexcept override {}

 private:
  const RankInfo info_;
};

StatusValue Create(Host& host, const Options&, Object** out) noexcept {
  *out = new (std::nothrow) WrongCommunicator(host.rank_info());
  return {};
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "wrong_comm",
                    .version = "1.0.0",
                    .kind = PluginKind::kCommunicator,
                    .doc = "wrong in one element",
                    .create = Create},
                   NoOps(), NoOptions());

}  // namespace engine::wrong_comm
