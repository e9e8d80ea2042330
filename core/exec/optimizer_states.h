// The memory of the optimizer: all of it, or this rank's part of each unit (ZeRO stage 1).
#pragma once

#include <vector>

#include "core/exec/model_memory.h"
#include "core/graph/device_buffer.h"
#include "engine/host.h"
#include "engine/optimizer.h"

namespace engine::exec {

class OptimizerStates {
 public:
  // When `sharded`, rank r of n keeps elements [r * count / n, (r + 1) * count / n) of each unit.
  static Result<OptimizerStates> Create(const ModelMemory& memory, const OptimizerTraits& traits,
                                        bool sharded, const RankInfo& rank);

  // State `index` of the element at `offset` of the arena, which belongs to `unit` and, when
  // sharded, to this rank.
  float* At(int32_t index, int32_t unit, int64_t offset) const {
    const int64_t moved = sharded_ ? offset + shift_[unit] : offset;
    return buffers_[index].f32() + moved;
  }

  int32_t count() const { return static_cast<int32_t>(buffers_.size()); }
  bool sharded() const { return sharded_; }
  size_t size_bytes() const;  // on this rank

 private:
  std::vector<graph::DeviceBuffer> buffers_;
  std::vector<int64_t> shift_;  // per unit: from an offset in the arena to one in a buffer
  bool sharded_ = false;
};

}  // namespace engine::exec
