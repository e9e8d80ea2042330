// Every rank keeps the optimizer states of its part of each bucket, and updates that (ZeRO stage 1):
//
//   REDUCE_SCATTER, hooks and UPDATE of this rank's part, ALL_GATHER of parameters, or of their
//   rounded copies where ops read those
#pragma once

#include <span>
#include <vector>

#include "core/exec/update_strategy.h"

namespace engine::exec {

std::vector<BucketChain> ShardedChains(const FlatLayout& layout);
// kConfig names the hook or the optimizer that needs whole gradients.
Status CheckCanShard(const plugin::PluginSet& plugins, const ExecutorOptions& options);

class ShardedUpdates final : public UpdateStrategy {
 public:
  ShardedUpdates(plugin::PluginSet& plugins, const ExecutorOptions& options)
      : UpdateStrategy(plugins, options, /*in_parts=*/true) {}

  Status Check(const graph::Graph& /*graph*/, const graph::Program& /*program*/) const override {
    return CheckCanShard(plugins_, options_);
  }
  void DescribeModel(const graph::Graph& /*graph*/, std::span<ParameterInfo> /*parameters*/,
                     ModelInfo* model) override {
    model->sharded = 1;
  }
  void DescribeTasks(const FlatLayout& layout, TaskGraphOptions* options) const override {
    options->chains = ShardedChains(layout);
    options->own_part = true;
  }
  void BeginStep(const StepInput& /*input*/) override { stale_ = true; }
  void Describe(const Task& task, uint64_t step, Transfer* transfer) const override;
  bool settled() const override { return !stale_; }
  Status Settle(BlockingTransfers& transfers) override;
  Status CollectStates(BlockingTransfers& transfers) override;

 private:
  // An all-gather of a bucket in place.
  Transfer GatherOf(const BucketLayout& bucket, float* whole) const;

  bool stale_ = false;  // parts of other ranks of buckets that are gathered rounded
};

}  // namespace engine::exec
