// What all strategies have in common: gradients are sent from the arena that backward tasks write,
// in place, and what is collected for a checkpoint lies in the layout of that arena.
#include "core/exec/update_strategy.h"

#include <utility>

#include "core/exec/reduced_updates.h"
#include "core/exec/served_updates.h"
#include "core/exec/sharded_updates.h"
#include "core/exec/wire.h"

namespace engine::exec {

std::unique_ptr<UpdateStrategy> UpdateStrategy::Choose(plugin::PluginSet& plugins,
                                                       const ExecutorOptions& options) {
  if (auto served = ServedUpdates::Make(plugins, options)) return served;
  if (options.shard_optimizer && options.rank.world_size > 1) {
    return std::make_unique<ShardedUpdates>(plugins, options);
  }
  return std::make_unique<ReducedUpdates>(plugins, options);
}

Status UpdateStrategy::Prepare(ModelMemory& memory) {
  memory_ = &memory;
  ENGINE_ASSIGN_OR_RETURN(states_,
                          OptimizerStates::Create(memory, optimizer_, in_parts_, options_.rank));
  return {};
}

void UpdateStrategy::Describe(const Task& task, uint64_t /*step*/, Transfer* transfer) const {
  const UnitLayout& unit = memory_->layout().units[task.info.unit];
  transfer->send = transfer->recv = memory_->gradients() + unit.offset;
  transfer->count = unit.count;
  CutForRank(options_.rank, transfer);
}

Status UpdateStrategy::ShareParameters(BlockingTransfers& transfers) {
  return Broadcast(transfers, 0);
}

Status UpdateStrategy::Broadcast(BlockingTransfers& transfers, int64_t from) {
  const int64_t count = memory_->layout().total_count - from;
  if (count == 0) return {};
  float* const parameters = memory_->parameters() + from;
  ENGINE_RETURN_IF_ERROR(transfers
                             .Run({.kind = TransferKind::kBroadcast,
                                   .send = parameters,
                                   .recv = parameters,
                                   .count = count,
                                   .stream = memory_->stream()})
                             .WithContext("broadcast of the initial parameters"));
  return memory_->RefreshCopies();
}

Status UpdateStrategy::AllocateCollected(int64_t count) {
  collected_.clear();
  for (int32_t s = 0; s < optimizer_.state_count; ++s) {
    auto whole =
        graph::DeviceBuffer::Create(memory_->device(), count * sizeof(float), memory_->stream());
    if (!whole.ok()) return whole.status().WithContext("memory to collect optimizer states");
    collected_.push_back(std::move(*whole));
  }
  return {};
}

TensorView UpdateStrategy::state(int32_t parameter, int32_t index) const {
  const bool here = options_.rank.rank == 0 && !collected_.empty();
  return ViewOf(parameter, here ? collected_[index].f32() : nullptr);
}

TensorView UpdateStrategy::ViewOf(int32_t parameter, float* arena) const {
  if (arena == nullptr || memory_->program().of_parameter[parameter] == graph::kNone) return {};
  return {.data = arena + memory_->layout().offset[parameter],
          .shape = memory_->graph().parameters[parameter].shape,
          .dtype = DType::kFloat32};
}

}  // namespace engine::exec
