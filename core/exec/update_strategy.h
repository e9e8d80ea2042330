// How the gradients of all ranks become new parameters: what a bucket goes through (BucketChain), and
// what lies where meanwhile. One strategy for a run; each is the only one that knows its mode.
//
//   ReducedUpdates  every rank has the sum and updates all parameters
//   ShardedUpdates  every rank updates its part of each bucket (ZeRO stage 1)
//   ServedUpdates   servers update, behind a communicator that is a ParameterClient
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/exec/model_memory.h"
#include "core/exec/task_graph.h"
#include "core/plugin/plugin_set.h"
#include "engine/optimizer.h"

namespace engine::exec {

class BlockingTransfers;
class ServedUpdates;

// The memory of the optimizer: all of it, or this rank's part of each bucket (ZeRO stage 1).
class OptimizerStates {
 public:
  // When `sharded`, rank r of n keeps elements [r * count / n, (r + 1) * count / n) of each bucket.
  static Result<OptimizerStates> Create(const ModelMemory& memory, const OptimizerTraits& traits,
                                        bool sharded, const RankInfo& rank);

  // State `index` of the element at `offset` of the arena, which belongs to `bucket` and, when
  // sharded, to this rank.
  float* At(int32_t index, int32_t bucket, int64_t offset) const {
    return buffers_[index].f32() + offset + (sharded() ? shift_[bucket] : 0);
  }

  int32_t count() const { return static_cast<int32_t>(buffers_.size()); }
  bool sharded() const { return !shift_.empty(); }
  // On this rank; each state is as large as the first.
  size_t size_bytes() const {
    return buffers_.empty() ? 0 : buffers_.size() * buffers_[0].size_bytes();
  }

 private:
  std::vector<graph::DeviceBuffer> buffers_;
  // Parts of a rank lie one behind the other, so an offset in the arena of the layout is moved by
  // what other ranks have before it: one number for each bucket. Empty: all is here.
  std::vector<int64_t> shift_;
};

// kPlugin names a plugin that keeps too many states, or without names of their own.
Status CheckStates(const char* kind, const std::string& name,
                   std::span<const FixedString<32>> state_names, int32_t count);

class UpdateStrategy {
 public:
  // The one that communicator and options ask for; borrows both.
  static std::unique_ptr<UpdateStrategy> Choose(plugin::PluginSet& plugins,
                                                const ExecutorOptions& options);
  virtual ~UpdateStrategy() = default;

  // In this order, once. [setup]
  // kConfig names the plugin or option that does not go with these updates.
  virtual Status Check(const graph::Graph& /*graph*/, const graph::Program& /*program*/) const {
    return {};
  }
  // What a scheduler is told of parameters and mode before it plans.
  virtual void DescribeModel(const graph::Graph& /*graph*/, std::span<ParameterInfo> /*parameters*/,
                             ModelInfo* /*model*/) {}
  // TaskGraphOptions::chains, and what else depends on the mode. `options->wire` is set.
  virtual void DescribeTasks(const FlatLayout& layout, TaskGraphOptions* options) const = 0;
  virtual Status Prepare(ModelMemory& memory);
  virtual Status Begin(const TaskGraph& /*tasks*/) { return {}; }

  // Of a step, by what is known when it begins, and when its backward pass begins: `weight` is the
  // weight of the targets of this rank. [compute-lane]
  virtual void BeginStep(const StepInput& /*input*/) {}
  virtual Status BeginBackward(const StepInput& /*input*/, float /*weight*/) { return {}; }
  // Buffers and count of a transfer of gradients or parameters, as they are. [any-thread]
  virtual void Describe(const Task& task, uint64_t step, Transfer* transfer) const;
  // Whether this rank has all parameters once transfers and updates are done; makes it so.
  // Collective. [compute-lane]
  virtual bool settled() const { return true; }
  virtual Status Settle(BlockingTransfers& /*transfers*/) { return {}; }

  // Gives every rank the parameters of rank 0. [setup]
  virtual Status ShareParameters(BlockingTransfers& transfers) { return Broadcast(transfers, 0); }
  // The same of all from element `from` of the layout on. [compute-lane]
  Status Broadcast(BlockingTransfers& transfers, int64_t from);
  // Brings states of the optimizer together on rank 0, until Drop. Collective. [compute-lane]
  virtual Status CollectStates(BlockingTransfers& /*transfers*/) { return {}; }
  void DropStates() { collected_.clear(); }
  // Null data for a parameter that is not trained, and for what is not here.
  TensorView state(int32_t parameter, int32_t index) const;

  // Null: the ranks update.
  virtual ServedUpdates* served() { return nullptr; }
  // Whether no rank waits for another in a step: statistics are those of this rank.
  virtual bool asynchronous() const { return false; }
  const OptimizerTraits& optimizer() const { return optimizer_; }
  // Whether each rank updates its part of a bucket.
  bool in_parts() const { return in_parts_; }
  const OptimizerStates& states() const { return states_; }

 protected:
  // `in_parts`: a rank keeps the states of its part of each bucket.
  UpdateStrategy(plugin::PluginSet& plugins, const ExecutorOptions& options, bool in_parts)
      : plugins_(plugins),
        options_(options),
        optimizer_(plugins.optimizer->traits()),
        in_parts_(in_parts) {}
  // Memory for `count` elements of each state.
  Status AllocateCollected(int64_t count);

  plugin::PluginSet& plugins_;
  const ExecutorOptions& options_;
  const OptimizerTraits optimizer_;
  const bool in_parts_;
  ModelMemory* memory_ = nullptr;  // from Prepare on
  OptimizerStates states_;
  std::vector<graph::DeviceBuffer> collected_;  // rank 0: whole states, in the layout of the arena
};

// Every rank has the sum of all gradients and makes all updates, so parameters stay equal bit for bit
// without ever being sent; what differs is only how the sum comes about.
//
//   all-reduce:  ALL_REDUCE, hooks, UPDATE
//   split:       REDUCE_SCATTER, ALL_GATHER of gradients, hooks, UPDATE
//   packed:      ALL_GATHER of what a hook has packed, hooks, UPDATE
std::vector<BucketChain> ReducedChains(const FlatLayout& layout, const WireLayout* wire);

class ReducedUpdates final : public UpdateStrategy {
 public:
  ReducedUpdates(plugin::PluginSet& plugins, const ExecutorOptions& options)
      : UpdateStrategy(plugins, options, /*in_parts=*/false) {}
  void DescribeTasks(const FlatLayout& layout, TaskGraphOptions* options) const override {
    options->chains = ReducedChains(layout, options->wire);
  }
};

}  // namespace engine::exec
