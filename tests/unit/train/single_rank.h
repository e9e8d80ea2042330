// One rank in this process with real plugins, for tests of the parts that a trainer is made of.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "app/config/config.h"
#include "app/launch/log.h"
#include "app/model/model_graph.h"
#include "core/exec/executor.h"
#include "core/plugin/rank_plugins.h"
#include "tests/support/memory_store.h"

namespace engine::test {

// That of the build; another one (ENGINE_TEST_PLUGINS) where the tests were built elsewhere.
inline std::string PluginFolder() {
  const char* folder = std::getenv("ENGINE_TEST_PLUGINS");
  return folder == nullptr ? ENGINE_TEST_PLUGIN_DIR : folder;
}

// Samples of one input and one target.
struct ModelInputs {
  Shape input_shape;  // of one sample
  DType input_dtype = DType::kFloat32;
  Shape target_shape;  // of one sample
  int64_t classes = 0;
  int64_t max_samples = 1;
  bool with_loss = true;  // false: a graph for inference
};

class SingleRank {
 public:
  static Result<std::unique_ptr<SingleRank>> Make(const std::string& config_text) {
    ENGINE_ASSIGN_OR_RETURN(
        config::Config config,
        config::Config::Load(
            {.text = config_text, .origin = "test", .plugin_folders = {PluginFolder()}}));
    std::unique_ptr<SingleRank> rank(new SingleRank(std::move(config)));
    rank->context_.log = launch::MemberLog({});
    ENGINE_ASSIGN_OR_RETURN(rank->plugins_,
                            plugin::RankPlugins::Create(rank->config_.plugins(), rank->context_));
    return rank;
  }

  const config::Config& config() const { return config_; }
  plugin::PluginSet& plugins() { return plugins_->set(); }
  const plugin::OpFactory& ops() const { return plugins_->op_factory(); }

  Result<graph::Graph> BuildGraph(const ModelInputs& inputs) { return BuildGraph(inputs, ops()); }
  Result<graph::Graph> BuildGraph(const ModelInputs& inputs, const plugin::OpFactory& factory) {
    const SampleTensor input{
        .name = "input", .shape = inputs.input_shape, .dtype = inputs.input_dtype};
    const SampleTensor target{.name = "target",
                              .shape = inputs.target_shape,
                              .dtype = DType::kInt32,
                              .classes = inputs.classes};
    const model::ModelRequest request{.inputs = {&input, 1},
                                      .targets = {&target, 1},
                                      .max_samples = inputs.max_samples,
                                      .with_loss = inputs.with_loss};
    return model::BuildGraph(config_.run(), context_, request, factory);
  }

  // For training; parameters are not initialised.
  Result<std::unique_ptr<exec::Executor>> MakeExecutor(const ModelInputs& inputs) {
    ENGINE_ASSIGN_OR_RETURN(graph::Graph graph, BuildGraph(inputs));
    const plugin::PluginSelection& chosen = config_.plugins();
    const exec::ExecutorOptions options{.seed = config_.run().seed,
                                        .scheduler_name = chosen.scheduler.entry.name,
                                        .optimizer_name = chosen.optimizer.entry.name,
                                        .hook_names = chosen.HookNames()};
    return exec::Executor::Create(std::move(graph), plugins_->set(), ops(), &store_, options);
  }

  // For inference; parameters are not initialised.
  Result<std::unique_ptr<exec::ModelMemory>> MakeModel(ModelInputs inputs) {
    inputs.with_loss = false;
    ENGINE_ASSIGN_OR_RETURN(graph::Graph graph, BuildGraph(inputs));
    exec::FlatLayout layout = exec::InferenceLayout(graph);
    graph::Program program = graph::ForwardProgram(graph);
    return exec::ModelMemory::Create(std::move(graph), std::move(program), std::move(layout),
                                     *plugins_->set().device, ops(), config_.run().seed);
  }

  // Of the graph with a loss for such data, without backward; parameters are not initialised.
  Result<std::unique_ptr<exec::ModelMemory>> MakeEvaluation(const DatasetInfo& data,
                                                            int64_t samples) {
    ENGINE_ASSIGN_OR_RETURN(
        graph::Graph graph,
        model::BuildGraph(config_.run(), context_, model::RequestFor(data, samples, true), ops()));
    exec::FlatLayout layout = exec::InferenceLayout(graph);
    graph::Program program = graph::ForwardProgram(graph);
    return exec::ModelMemory::Create(std::move(graph), std::move(program), std::move(layout),
                                     *plugins_->set().device, ops(), config_.run().seed);
  }

  // As rank of a world of `world_size` that shards its optimizer would lay it out.
  Result<std::unique_ptr<exec::ModelMemory>> MakeShardedModel(const ModelInputs& inputs,
                                                              int32_t world_size) {
    ENGINE_ASSIGN_OR_RETURN(graph::Graph graph, BuildGraph(inputs));
    graph::Program program = graph::Differentiate(graph);
    const std::vector<ParameterInfo> parameters = exec::DescribeParameters(graph, program);
    const ModelInfo model{.parameters = parameters,
                          .communicator = plugins_->set().communicator->traits(),
                          .world_size = world_size,
                          .slice_multiple = exec::SliceMultiple(world_size),
                          .sharded = 1};
    ENGINE_ASSIGN_OR_RETURN(
        exec::FlatLayout layout,
        exec::MakeLayout(graph, model, *plugins_->set().scheduler, "scheduler under test"));
    return exec::ModelMemory::Create(std::move(graph), std::move(program), std::move(layout),
                                     *plugins_->set().device, ops(), config_.run().seed);
  }
  OptimizerTraits optimizer_traits() const { return plugins_->set().optimizer->traits(); }

 private:
  explicit SingleRank(config::Config config)
      : config_(std::move(config)), store_(std::make_shared<test::MemoryTable>(), abort_) {}

  const config::Config config_;
  std::atomic<int> stop_{0};
  base::AbortSignal abort_;
  test::MemoryStore store_;
  base::RankContext context_{.info = {}, .store = store_, .abort = abort_, .stop_requested = stop_};
  std::unique_ptr<plugin::RankPlugins> plugins_;
};

struct RankWithExecutor {
  std::unique_ptr<SingleRank> rank;
  std::unique_ptr<exec::Executor> executor;  // uses the rank
};

// A rank and an executor whose parameters have their initial values; null when there is an error,
// which is reported.
inline RankWithExecutor MakeRankWithExecutor(const std::string& config, const ModelInputs& inputs) {
  RankWithExecutor made;
  const auto make = [&]() -> Status {
    ENGINE_ASSIGN_OR_RETURN(made.rank, SingleRank::Make(config));
    ENGINE_ASSIGN_OR_RETURN(made.executor, made.rank->MakeExecutor(inputs));
    return made.executor->memory().InitializeParameters();
  };
  const Status status = make();
  EXPECT_TRUE(status.ok()) << status.message();
  return made;
}

}  // namespace engine::test
