// Servers keep the parameters and update them, behind a communicator that is a ParameterClient: the
// one place of the core that knows of them, and of tables of which only some rows travel.
//
//   PUSH of gradients, PULL of parameters, which servers have updated meanwhile
//   rows of tables (train.sparse_pull): PUSH of the rows that the batch has read; the next step
//   begins with a PULL of those that its batch reads
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/exec/update_strategy.h"
#include "engine/ext/parameter_server.h"

namespace engine::exec {

// By parameter of the graph: > 0: a *row table*, of rows of so many elements. A step reads the rows
// whose numbers are in its batch, Graph::input, and its gradient is zero in all others.
std::vector<int64_t> RowElements(const graph::Graph& graph);

// For ExecutorOptions::sparse_pull: kConfig when no parameter that is trained is a row table.
Status CheckHasRowTables(const graph::Graph& graph);

// `row_elements`: by parameter of the graph, each row table a bucket of its own; empty: there is none.
std::vector<BucketChain> ServedChains(const FlatLayout& layout,
                                      const std::vector<int64_t>& row_elements);

class ServedUpdates final : public UpdateStrategy {
 public:
  ServedUpdates(plugin::PluginSet& plugins, const ExecutorOptions& options, ParameterClient& client)
      : UpdateStrategy(plugins, options, /*in_parts=*/false), client_(client) {}

  Status Check(const graph::Graph& graph, const graph::Program& program) const override;
  void DescribeModel(const graph::Graph& graph, std::span<ParameterInfo> parameters,
                     ModelInfo* model) override;
  void DescribeTasks(const FlatLayout& layout, TaskGraphOptions* options) const override;
  Status Prepare(ModelMemory& memory) override;
  Status Begin(const TaskGraph& tasks) override;
  void BeginStep(const StepInput& input) override;
  Status BeginBackward(const StepInput& input, float weight) override;
  void Describe(const Task& task, uint64_t step, Transfer* transfer) const override;
  bool settled() const override { return !rows_stale_; }
  Status Settle(BlockingTransfers& transfers) override;
  Status ShareParameters(BlockingTransfers& transfers) override;
  Status CollectStates(BlockingTransfers& transfers) override;
  ServedUpdates* served() override { return this; }
  bool asynchronous() const override { return client_.traits().mode != UpdateMode::kSync; }

  // State `index` of all parameters, in the layout of the arena (trainable_count elements), for
  // ShareParameters to give to the servers. [setup]
  Status SetState(int32_t index, std::span<const float> arena);
  // Waits for all ranks that are there; then the parameters are those that servers have. After all
  // updates. [compute-lane]
  Status Meet(BlockingTransfers& transfers);
  // The step after the last one of which servers have this rank's gradients. [setup]
  Result<int64_t> NextStep();

 private:
  Status Refuse(const std::string& what, const char* advice) const;
  std::vector<ServedSpan> SpansOf(const BucketLayout& bucket, int64_t count) const;
  Status Store(int32_t state, const float* arena);
  Status Load(int32_t state, float* arena, bool tables_only = false);

  ParameterClient& client_;
  const std::string title_ = "communicator '" + options_.communicator_name + "'";
  std::vector<int64_t> row_elements_;           // as for ServedChains
  std::vector<ServedBucket> buckets_;           // a table has no padding
  std::vector<std::vector<ServedSpan>> spans_;  // what those refer to
  std::vector<int32_t> rows_[2];                // of the batches of even and odd steps: ascending
  bool rows_stale_ = false;                     // rows were not pulled since servers updated them
};

}  // namespace engine::exec
