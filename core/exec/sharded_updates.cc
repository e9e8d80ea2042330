// Rank r of n has elements [r * count / n, (r + 1) * count / n) of each unit. Its float32 parameters
// are right there only, between steps, where a unit is gathered rounded: the others have but copies
// in bfloat16, until Settle gathers the float32 ones for whoever looks at parameters.
#include "core/exec/sharded_updates.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/exec/wire.h"

namespace engine::exec {

std::vector<UnitChain> ShardedChains(const FlatLayout& layout) {
  return std::vector<UnitChain>(layout.units.size(),
                                {.gradients = {{TransferKind::kReduceScatter, "scatter "}},
                                 .parameters = {{TransferKind::kAllGather, "gather "}}});
}

Status CheckCanShard(const plugin::PluginSet& plugins, const ExecutorOptions& options) {
  const auto whole = [](const char* kind, const std::string& name) {
    return Status::Error(StatusCode::kConfig,
                         "%s '%s' needs whole gradients, and train.shard_optimizer gives each rank "
                         "a part of each: set it to false or choose another %s",
                         kind, name.c_str(), kind);
  };
  for (size_t i = 0; i < plugins.hooks.size(); ++i) {
    const HookTraits hook = plugins.hooks[i]->traits();
    if (hook.stage == HookStage::kReduced && hook.scope == HookScope::kTensor) {
      return whole("hook", options.hook_names[i]);
    }
  }
  const bool in_parts = plugins.optimizer->traits().gate != UpdateGate::kTensor;
  return in_parts ? Status() : whole("optimizer", options.optimizer_name);
}

// In place, like gradients: the part of this rank is what it has just updated.
void ShardedUpdates::Describe(const Task& task, uint64_t step, Transfer* transfer) const {
  if (task.data == TransferData::kGradients) return UpdateStrategy::Describe(task, step, transfer);
  const UnitLayout& unit = memory_->layout().units[task.info.unit];
  transfer->dtype = unit.gathered;
  transfer->send = transfer->recv = unit.gathered == DType::kBFloat16
                                        ? memory_->copy_at(unit.offset)
                                        : memory_->parameters() + unit.offset;
  transfer->count = unit.count;
  CutForRank(options_.rank, transfer);
}

// Parts that other ranks have updated come without what ops read of them, or as nothing but that.
Status ShardedUpdates::TakeParameters(const Task& task) {
  const UnitLayout& unit = memory_->layout().units[task.info.unit];
  if (unit.gathered == DType::kBFloat16) return {};
  return memory_->RefreshCopies(unit.offset, unit.count);
}

Transfer ShardedUpdates::GatherOf(const UnitLayout& unit, float* whole) const {
  Transfer gather{.kind = TransferKind::kAllGather,
                  .send = whole,
                  .recv = whole,
                  .count = unit.count,
                  .stream = memory_->stream()};
  CutForRank(options_.rank, &gather);
  return gather;
}

// Of units that are gathered rounded each rank has its own part in float32.
Status ShardedUpdates::Settle(BlockingTransfers& transfers) {
  stale_ = false;
  std::vector<Transfer> together;
  for (const UnitLayout& unit : memory_->layout().units) {
    if (unit.gathered == DType::kFloat32) continue;
    together.push_back(GatherOf(unit, memory_->parameters() + unit.offset));
  }
  return transfers.RunTogether(together).WithContext("gathering parameters");
}

// One unit after the other, so that ranks that keep nothing need room for the largest alone.
Status ShardedUpdates::CollectStates(BlockingTransfers& transfers) {
  const bool keeps = options_.rank.rank == 0;
  const FlatLayout& layout = memory_->layout();
  int64_t largest = 0;
  for (const UnitLayout& unit : layout.units) largest = std::max(largest, unit.count);
  ENGINE_RETURN_IF_ERROR(AllocateCollected(keeps ? layout.trainable_count : largest));
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const UnitLayout& unit = layout.units[u];
    const int64_t own = unit.offset + options_.rank.rank * (unit.count / options_.rank.world_size);
    std::vector<Transfer> together;
    for (int32_t s = 0; s < states_.count(); ++s) {
      together.push_back(GatherOf(unit, collected_[s].f32() + (keeps ? unit.offset : 0)));
      together.back().send = states_.At(s, static_cast<int32_t>(u), own);
      together.back().unit = static_cast<uint32_t>(u);
    }
    ENGINE_RETURN_IF_ERROR(
        transfers.RunTogether(together).WithContext("collecting optimizer states"));
  }
  return {};
}

}  // namespace engine::exec
