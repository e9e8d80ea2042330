// A scheduler that has planned and begun a step graph.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/conformance/plugin_under_test.h"
#include "tests/conformance/scheduler/executor_model.h"
#include "tests/conformance/scheduler/step_graph.h"

namespace engine::test {

inline std::string SchedulerPath(const std::string& name) {
  return ENGINE_TEST_PLUGIN_DIR "/libengine_" + name + ".so";
}

inline std::unique_ptr<Scheduler> MakeScheduler(const std::string& path,
                                                const OptionValues::Overrides& options = {},
                                                Host* host = nullptr) {
  static SingleHost single_host;
  auto plugin = PluginUnderTest::Load(path);
  if (!plugin.ok()) {
    ADD_FAILURE() << plugin.status().message();
    return nullptr;
  }
  auto scheduler = plugin->Create<Scheduler>(host ? *host : single_host, options);
  if (scheduler.ok()) return std::move(*scheduler);
  ADD_FAILURE() << scheduler.status().message();
  return nullptr;
}

struct SchedulerRig {
  SchedulerRig(const std::string& path, const ModelSketch& model, std::mt19937* shuffle = nullptr,
               const OptionValues::Overrides& options = {})
      : SchedulerRig(MakeScheduler(path, options), model, shuffle) {}

  SchedulerRig(std::unique_ptr<Scheduler> its_scheduler, const ModelSketch& model,
               std::mt19937* shuffle = nullptr)
      : scheduler(std::move(its_scheduler)), graph(model, shuffle) {
    if (!scheduler) return;
    const ModelInfo info = graph.model_info();
    const Status planned = scheduler->Plan(info, plan);
    EXPECT_TRUE(planned.ok()) << planned.message();
    const std::string problem = plan.Problem(info);
    EXPECT_EQ(problem, "");
    if (problem.empty()) graph.Complete(plan.units());
    const Status begun = scheduler->Begin(graph.tasks());
    EXPECT_TRUE(begun.ok()) << begun.message();
    executor = std::make_unique<ExecutorModel>(*scheduler, graph);
  }

  // The random model of `seed`: equal seeds give equal rigs, as on the ranks of one run.
  static SchedulerRig Random(const std::string& path, uint32_t seed) {
    std::mt19937 random(seed);
    const ModelSketch model = ModelSketch::Random(random);
    return SchedulerRig(path, model, &random);
  }

  bool ok() const { return executor && !testing::Test::HasFailure(); }
  bool leads() const { return scheduler->traits().order == TransferOrder::kLeader; }

  std::unique_ptr<Scheduler> scheduler;
  StepGraph graph;
  PlanRecorder plan;
  std::unique_ptr<ExecutorModel> executor;
};

}  // namespace engine::test
