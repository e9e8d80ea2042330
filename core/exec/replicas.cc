// The compute lane of a rank waits inside of an op until the same op runs on all ranks. That ends:
// 1. Tasks that gather are one chain (BuildTaskGraph), so all ranks come to them in one order, and
//    a rank that waits in one has left those before it behind.
// 2. When a task runs on one rank, all that it depends on is done there. A transfer that is done
//    somewhere was started everywhere; so on every other rank it ends without more work of any
//    compute lane, and what computes between such transfers waits for nothing else. So every rank
//    comes to the task.
// 3. Gathers never wait behind other transfers: they have a communicator of their own where ranks
//    must submit in one order, since the lane that submits the others does not wait for them.
#include "core/exec/replicas.h"

#include <limits>

#include "core/base/clock.h"
#include "core/base/hash.h"
#include "engine/ext/accelerator.h"

namespace engine::exec {

bool CommunicatorReplicas::CanGather(const CommunicatorTraits& traits) {
  return (traits.kinds & Bit(TransferKind::kAllGather)) != 0 &&
         (traits.dtypes & Bit(DType::kFloat32)) != 0;
}

CommunicatorReplicas::CommunicatorReplicas(Submitter& submitter, Device& device,
                                           const RankInfo& rank, uint64_t plan, int64_t timeout_ms)
    : submitter_(submitter),
      device_(device),
      rank_(rank),
      plan_(plan),
      timeout_ms_(timeout_ms),
      is_accelerator_(device.Query(kAcceleratorId) != nullptr),
      measures_only_(submitter.communicator().traits().no_op != 0) {}

void CommunicatorReplicas::Begin(uint32_t task) {
  task_ = task;
  call_ = 0;
}

double CommunicatorReplicas::TakeWaitedSeconds() {
  const double seconds = static_cast<double>(waited_ns_) * 1e-9;
  waited_ns_ = 0;
  return seconds;
}

// The host of an accelerator goes on; an error shows in the transfers that follow.
Status CommunicatorReplicas::Gather(const float* own, int64_t count, float* all,
                                    Stream* stream) noexcept {
  if (measures_only_) return CopyOwn(own, count, all, stream);
  const int64_t begin = base::NowNs();
  const Status status = Run(
      {.send = own,
       .recv = all,
       .count = count,
       .key = base::HashOf({plan_, std::numeric_limits<uint64_t>::max() - 1, task_, call_++}) | 1,
       .priority = std::numeric_limits<int32_t>::max(),
       .stream = stream},
      is_accelerator_ ? stream : nullptr);
  waited_ns_ += base::NowNs() - begin;
  return status;
}

// A transfer of nothing keeps its place behind the others.
Status CommunicatorReplicas::Settle() {
  return measures_only_ ? Status() : Run({}, nullptr);
}

Status CommunicatorReplicas::Run(Transfer gather, Stream* waits) noexcept {
  gather.kind = TransferKind::kAllGather;
  gather.sequence = ++sequence_;
  gather.timeout_ms = timeout_ms_;
  return submitter_.Run({&gather, 1}, waits).WithContext("gathering from all ranks");
}

// Where nothing is moved every rank counts as one that has what this one has.
Status CommunicatorReplicas::CopyOwn(const float* own, int64_t count, float* all,
                                     Stream* stream) noexcept {
  const auto size_bytes = static_cast<size_t>(count) * sizeof(float);
  for (int32_t r = 0; r < rank_.world_size; ++r) {
    float* const part = all + r * count;
    if (part != own) ENGINE_RETURN_IF_ERROR(device_.Copy(part, own, size_bytes, stream));
  }
  return {};
}

}  // namespace engine::exec
