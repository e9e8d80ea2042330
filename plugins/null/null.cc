// null: a communicator that moves nothing between ranks. In a world of one that is all there is to
// do; in a larger one it measures what training costs without communication, and the ranks drift
// apart.
#include <cstddef>
#include <cstring>
#include <exception>

#include "kit/accelerator.h"
#include "kit/communicator.h"
#include "kit/create.h"
#include "kit/failure.h"
#include "kit/work.h"

namespace engine::null {
namespace {

// What this rank contributes to its own result: an all-reduce or broadcast gives back `send`, a
// reduce-scatter this rank's slice of it; an all-gather fills this rank's slice of `recv`.
// `device` is null where buffers are host memory.
Status CopyOwn(const Transfer& transfer, const RankInfo& ranks, Device* device) noexcept {
  if (transfer.kind == TransferKind::kBarrier || !transfer.send || !transfer.recv) return {};
  const size_t size_bytes = static_cast<size_t>(transfer.count) * SizeOf(transfer.dtype);
  const size_t own_slice = static_cast<size_t>(ranks.rank) * size_bytes;
  const auto* source = static_cast<const std::byte*>(transfer.send);
  auto* target = static_cast<std::byte*>(transfer.recv);
  if (transfer.kind == TransferKind::kReduceScatter) source += own_slice;
  if (transfer.kind == TransferKind::kAllGather) target += own_slice;
  if (source == target) return {};
  if (!device) {
    std::memcpy(target, source, size_bytes);
    return {};
  }
  ENGINE_RETURN_IF_ERROR(device->Copy(target, source, size_bytes, transfer.stream));
  return transfer.stream ? transfer.stream->Synchronize(transfer.timeout_ms) : Status();
}

// A work is complete when Submit returns: there is no thread, nothing waits, and an abort has
// nothing to end.
class NullCommunicator final : public CommunicatorBase {
 public:
  NullCommunicator(const RankInfo& ranks, Device* accelerator)
      : ranks_(ranks), accelerator_(accelerator), pool_(0, kit::WorkPool::Of<kit::PooledWork>()) {}

  CommunicatorTraits traits() const noexcept override {
    return {.kinds = kit::kCollectives,
            .dtypes = kit::kAllDTypes,
            .ordered = 0,
            .max_in_flight = 0,
            .no_op = ranks_.world_size > 1,
            .device_memory = 1};
  }

  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    if (failure_.raised()) return failure_.reason();
    if (transfer.count < 0) return kit::InvalidTransfer("count", transfer.count);
    if (transfer.timeout_ms <= 0) return kit::InvalidTransfer("timeout_ms", transfer.timeout_ms);
    if (!accelerator_ && transfer.stream && transfer.stream->native()) {
      return Status::Error(StatusCode::kUnsupported,
                           "null was made for host memory: copy the data to the host first");
    }
    ENGINE_RETURN_IF_ERROR(CopyOwn(transfer, ranks_, accelerator_));
    ENGINE_ASSIGN_OR_RETURN(kit::PooledWork* const work, pool_.Take(transfer));
    *out = work;
    work->MarkStarted();
    work->Complete({});
    return {};
  }

  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  const RankInfo ranks_;
  Device* const accelerator_;  // null: buffers are host memory
  kit::WorkPool pool_;
  kit::Failure failure_;
};

StatusValue Create(Host& host, const Options&, Object** out) noexcept {
  try {
    const bool is_accelerator = kit::AcceleratorOf(host) != nullptr;
    *out = new NullCommunicator(host.rank_info(), is_accelerator ? host.device() : nullptr);
    return {};
  } catch (const std::exception&) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory for a communicator");
  }
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kCommunicator, "null", "1.0.0",
    "moves nothing: for one rank, or to measure training without communication", Create);

}  // namespace engine::null
