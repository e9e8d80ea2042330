// Sums of channels over the rows of all ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "channel_kernels.h"
#include "engine/op.h"

namespace engine::cpu_ops {

// Each function is one gather, and ends with the same bits on all ranks: what a rank adds is what
// the others see of it, floats, in the order of ranks. Errors are those of Replicas::Gather, and
// kResourceExhausted when memory is out. The memory, which depends on the number of ranks, is
// allocated by the first call and stays.
class ReplicaSums {
 public:
  // `count` and the moments of this rank's rows become those of the rows of all ranks.
  Status Merge(const OpCall& call, int64_t channels, const ChannelSums& moments,
               double* count) noexcept;
  // The sums over this rank's rows become those over the rows of all ranks.
  Status Add(const OpCall& call, int64_t channels, const ChannelSums& sums) noexcept;

 private:
  Status Reserve(const Replicas& replicas, int64_t row_size) noexcept;
  float* Row(int32_t rank) noexcept { return rows_.get() + rank * row_size_; }

  std::unique_ptr<float[]> rows_;  // one of each rank
  int64_t capacity_ = 0;
  int64_t row_size_ = 0;
};

}  // namespace engine::cpu_ops
