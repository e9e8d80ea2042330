// OpCall::replicas of one rank: gathers from the ops themselves, while they run.
//
// The compute lane of a rank waits inside of an op until the same op runs on all ranks. That ends:
// 1. Tasks that gather are one chain (BuildTaskGraph), so all ranks come to them in one order, and
//    a rank that waits in one has left those before it behind.
// 2. When a task runs on one rank, all that it depends on is done there. A transfer that is done
//    somewhere was started everywhere; so on every other rank it ends without more work of any
//    compute lane, and what computes between such transfers waits for nothing else. So every rank
//    comes to the task.
// 3. Gathers never wait behind other transfers: they have a communicator of their own where ranks
//    must submit in one order, since the lane that submits the others does not wait for them.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "core/base/clock.h"
#include "core/base/hash.h"
#include "core/exec/submitter.h"
#include "engine/op.h"

namespace engine::exec {

class CommunicatorReplicas final : public ReplicasBase {
 public:
  // `submitter` is borrowed; nothing else that must keep an order may be submitted to the
  // communicator. `queues`: an accelerator's stream waits for a gather, not the host. `plan` is the
  // same on all ranks and tells their keys from those of others.
  CommunicatorReplicas(Submitter& submitter, bool queues, const RankInfo& rank, uint64_t plan,
                       int64_t timeout_ms)
      : submitter_(submitter), queues_(queues), rank_(rank), plan_(plan), timeout_ms_(timeout_ms) {}

  // The calls that follow are those of `task`, the same on all ranks. An op makes as many of them
  // in every step, each with the buffers and the count that it had before. [compute-lane]
  void Begin(uint32_t task) {
    task_ = task;
    call_ = 0;
  }

  // The error of a gather that the host did not wait for, when the device has passed all of them.
  // [compute-lane]
  Status Settle() { return Run({}, nullptr); }

  // How long calls have waited since this was asked last. [compute-lane]
  double TakeWaitedSeconds() { return static_cast<double>(std::exchange(waited_ns_, 0)) * 1e-9; }

  int32_t size() const noexcept override { return rank_.world_size; }
  int32_t rank() const noexcept override { return rank_.rank; }
  // The host of an accelerator goes on; an error shows in the transfers that follow.
  Status Gather(const float* own, int64_t count, float* all, Stream* stream) noexcept override {
    const int64_t begin = base::NowNs();
    const uint64_t no_task = std::numeric_limits<uint64_t>::max() - 1;
    const Status status = Run({.send = own,
                               .recv = all,
                               .count = count,
                               .key = base::HashOf({plan_, no_task, task_, call_++}) | 1,
                               .priority = std::numeric_limits<int32_t>::max(),
                               .stream = stream},
                              queues_ ? stream : nullptr);
    waited_ns_ += base::NowNs() - begin;
    return status;
  }

 private:
  // Waited for by `waits`, or by the host if that is null. A transfer of nothing keeps its place
  // behind the others.
  Status Run(Transfer gather, Stream* waits) noexcept {
    gather.kind = TransferKind::kAllGather;
    gather.sequence = ++sequence_;
    gather.timeout_ms = timeout_ms_;
    return submitter_.Run({&gather, 1}, waits).WithContext("gathering from all ranks");
  }

  Submitter& submitter_;
  const bool queues_;
  const RankInfo rank_;
  const uint64_t plan_;
  const int64_t timeout_ms_;
  uint32_t task_ = 0;
  uint32_t call_ = 0;      // of the task
  uint64_t sequence_ = 0;  // over the whole run
  int64_t waited_ns_ = 0;
};

}  // namespace engine::exec
