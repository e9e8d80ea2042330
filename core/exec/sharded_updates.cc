// Rank r of n has elements [r * count / n, (r + 1) * count / n) of each bucket. Its float32 parameters
// are right there only, between steps, where a bucket is gathered rounded: the others have but copies
// in bfloat16, until Settle gathers the float32 ones for whoever looks at parameters.
#include "core/exec/sharded_updates.h"

#include <algorithm>
#include <string>

#include "core/exec/step_runner.h"
#include "core/exec/wire.h"

namespace engine::exec {

std::vector<BucketChain> ShardedChains(const FlatLayout& layout) {
  return std::vector<BucketChain>(layout.buckets.size(),
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
  const BucketLayout& bucket = memory_->layout().buckets[task.info.bucket];
  const bool rounded = bucket.gathered == DType::kBFloat16;
  transfer->dtype = bucket.gathered;
  transfer->count = bucket.count;
  MoveInPlace(rounded ? memory_->copy_at(bucket.offset) : memory_->parameters() + bucket.offset,
              options_.rank, transfer);
}

Transfer ShardedUpdates::GatherOf(const BucketLayout& bucket, float* whole) const {
  Transfer gather{
      .kind = TransferKind::kAllGather, .count = bucket.count, .stream = memory_->stream()};
  MoveInPlace(whole, options_.rank, &gather);
  return gather;
}

// Of buckets that are gathered rounded each rank has its own part in float32.
Status ShardedUpdates::Settle(BlockingTransfers& transfers) {
  stale_ = false;
  std::vector<Transfer> together;
  for (const BucketLayout& bucket : memory_->layout().buckets) {
    if (bucket.gathered == DType::kFloat32) continue;
    together.push_back(GatherOf(bucket, memory_->parameters() + bucket.offset));
  }
  return transfers.RunTogether(together).WithContext("gathering parameters");
}

// One bucket after the other, so that ranks that keep nothing need room for the largest alone.
Status ShardedUpdates::CollectStates(BlockingTransfers& transfers) {
  const bool keeps = options_.rank.rank == 0;
  const FlatLayout& layout = memory_->layout();
  int64_t largest = 0;
  for (const BucketLayout& bucket : layout.buckets) largest = std::max(largest, bucket.count);
  ENGINE_RETURN_IF_ERROR(AllocateCollected(keeps ? layout.trainable_count : largest));
  for (size_t u = 0; u < layout.buckets.size(); ++u) {
    const BucketLayout& bucket = layout.buckets[u];
    const int64_t own =
        bucket.offset + options_.rank.rank * (bucket.count / options_.rank.world_size);
    std::vector<Transfer> together;
    for (int32_t s = 0; s < states_.count(); ++s) {
      together.push_back(GatherOf(bucket, collected_[s].f32() + (keeps ? bucket.offset : 0)));
      together.back().send = states_.At(s, static_cast<int32_t>(u), own);
      together.back().bucket = static_cast<uint32_t>(u);
    }
    ENGINE_RETURN_IF_ERROR(
        transfers.RunTogether(together).WithContext("collecting optimizer states"));
  }
  return {};
}

}  // namespace engine::exec
