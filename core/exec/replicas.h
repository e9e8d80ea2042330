// OpCall::replicas of one rank: gathers from the ops themselves, while they run.
#pragma once

#include <cstdint>

#include "core/exec/submitter.h"
#include "engine/host.h"
#include "engine/op.h"

namespace engine::exec {

class CommunicatorReplicas final : public Replicas {
 public:
  // Whether a communicator has what this needs.
  static bool CanGather(const CommunicatorTraits& traits);
  // `submitter` and `device` are borrowed; nothing else that must keep an order may be submitted to
  // the communicator. `plan` is the same on all ranks and tells their keys from those of others.
  CommunicatorReplicas(Submitter& submitter, Device& device, const RankInfo& rank, uint64_t plan,
                       int64_t timeout_ms);

  // The calls that follow are those of `task`, the same on all ranks. An op makes as many of them
  // in every step, each with the buffers and the count that it had before. [compute-lane]
  void Begin(uint32_t task);

  // The error of a gather that the host did not wait for, when the device has passed all of them.
  // [compute-lane]
  Status Settle();

  // How long calls have waited since this was asked last. [compute-lane]
  double TakeWaitedSeconds();

  int32_t size() const noexcept override { return rank_.world_size; }
  int32_t rank() const noexcept override { return rank_.rank; }
  Status Gather(const float* own, int64_t count, float* all, Stream* stream) noexcept override;

 private:
  // Waited for by `waits`, or by the host if that is null.
  Status Run(Transfer gather, Stream* waits) noexcept;
  Status CopyOwn(const float* own, int64_t count, float* all, Stream* stream) noexcept;

  Submitter& submitter_;
  Device& device_;
  const RankInfo rank_;
  const uint64_t plan_;
  const int64_t timeout_ms_;
  const bool is_accelerator_;
  const bool measures_only_;
  uint32_t task_ = 0;
  uint32_t call_ = 0;      // of the task
  uint64_t sequence_ = 0;  // over the whole run
  int64_t waited_ns_ = 0;
};

}  // namespace engine::exec
