// What is sharded, brought together: parameters on all ranks, optimizer states on rank 0.

#include <algorithm>
#include <vector>

#include "core/exec/executor.h"

namespace engine {

Status Executor::AllocateCollected(int64_t count) {
  collected_.clear();
  for (int32_t s = 0; s < optimizer_traits_.state_count; ++s) {
    auto whole = DeviceBuffer::Create(memory_->device(), count * sizeof(float), memory_->stream());
    if (!whole.ok()) return whole.status().WithContext("memory to collect optimizer states");
    collected_.push_back(std::move(*whole));
  }
  return {};
}

// Of units that are gathered rounded each rank has its own part in float32.
Status Executor::GatherParameters() {
  parameters_stale_ = false;
  std::vector<Transfer> together;
  for (const UnitLayout& unit : memory_->layout().units) {
    if (unit.gathered == DType::kFloat32) continue;
    const int64_t part = unit.count / options_.rank.world_size;
    float* const whole = memory_->parameters() + unit.offset;
    together.push_back({.kind = TransferKind::kAllGather,
                        .send = whole + options_.rank.rank * part,
                        .recv = whole,
                        .count = part,
                        .stream = memory_->stream()});
  }
  return RunTogether(together).WithContext("gathering parameters");
}

// As many units together as ranks that keep nothing have room for: the largest one.
Status Executor::CollectOptimizerStates() {
  ENGINE_CHECK(flushed(), "optimizer states while updates are under way");
  if (served()) return CollectServedStates();
  if (!sharded_) return {};
  const bool keeps = options_.rank.rank == 0;
  const FlatLayout& layout = memory_->layout();
  int64_t largest = 0;
  for (const UnitLayout& unit : layout.units) largest = std::max(largest, unit.count);
  ENGINE_RETURN_IF_ERROR(AllocateCollected(keeps ? layout.trainable_count : largest));
  std::vector<Transfer> together;
  int64_t used = 0;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const UnitLayout& unit = layout.units[u];
    if (used + unit.count > largest) {
      ENGINE_RETURN_IF_ERROR(RunTogether(together).WithContext("collecting optimizer states"));
      together.clear();
      used = 0;
    }
    const int64_t part = unit.count / options_.rank.world_size;
    for (int32_t s = 0; s < states_->count(); ++s) {
      together.push_back(
          {.kind = TransferKind::kAllGather,
           .send = states_->At(s, static_cast<int32_t>(u), unit.offset + options_.rank.rank * part),
           .recv = collected_[s].f32() + (keeps ? unit.offset : used),
           .count = part,
           .unit = static_cast<uint32_t>(u),
           .stream = memory_->stream()});
    }
    used += unit.count;
  }
  return RunTogether(together).WithContext("collecting optimizer states");
}

}  // namespace engine
