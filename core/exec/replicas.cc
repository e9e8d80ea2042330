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

namespace engine::exec {

// The host of an accelerator goes on; an error shows in the transfers that follow.
Status CommunicatorReplicas::Gather(const float* own, int64_t count, float* all,
                                    Stream* stream) noexcept {
  const int64_t begin = base::NowNs();
  const Status status = Run(
      {.send = own,
       .recv = all,
       .count = count,
       .key = base::HashOf({plan_, std::numeric_limits<uint64_t>::max() - 1, task_, call_++}) | 1,
       .priority = std::numeric_limits<int32_t>::max(),
       .stream = stream},
      queues_ ? stream : nullptr);
  waited_ns_ += base::NowNs() - begin;
  return status;
}

Status CommunicatorReplicas::Run(Transfer gather, Stream* waits) noexcept {
  gather.kind = TransferKind::kAllGather;
  gather.sequence = ++sequence_;
  gather.timeout_ms = timeout_ms_;
  return submitter_.Run({&gather, 1}, waits).WithContext("gathering from all ranks");
}

}  // namespace engine::exec
