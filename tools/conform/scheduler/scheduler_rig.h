// A scheduler that has planned and begun a step graph, and a model of the executor that drives it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "tools/conform/plugin_under_test.h"
#include "tools/conform/scheduler/executor_model.h"
#include "tools/conform/scheduler/step_graph.h"

namespace engine::conform {

// What the engine makes of a plan for these parameters; its error where the plan breaks a rule.
inline Result<exec::FlatLayout> LayoutOf(const ModelInfo& info, Scheduler& scheduler) {
  graph::Graph model;
  model.values.resize(1);
  for (const ParameterInfo& parameter : info.parameters) {
    model.parameters.resize(std::max<size_t>(model.parameters.size(), parameter.id + 1));
    model.parameters[parameter.id] = {.value = 0, .shape = {parameter.count}};
  }
  return exec::MakeLayout(model, info, scheduler, "under test");
}

struct SchedulerRig {
  SchedulerRig(std::unique_ptr<Scheduler> its_scheduler, const ModelSketch& model,
               std::mt19937* shuffle = nullptr)
      : scheduler(std::move(its_scheduler)), graph(model) {
    Must(graph.Plan(*scheduler, shuffle));
    Must(scheduler->Begin(graph.tasks()));
    executor = std::make_unique<ExecutorModel>(*scheduler, graph);
  }

  // The random model of `seed`: equal seeds give equal rigs, as on the ranks of one run.
  static SchedulerRig Random(std::unique_ptr<Scheduler> scheduler, uint32_t seed) {
    std::mt19937 random(seed);
    const ModelSketch model = ModelSketch::Random(random);
    return SchedulerRig(std::move(scheduler), model, &random);
  }

  // Runs steps, in which the scheduler may make no mistake.
  Trace Run(const ExecutionOptions& options) {
    Trace trace;
    MustBeFine(executor->Run(options, &trace));
    return trace;
  }
  static void MustBeFine(const std::string& problem) {
    if (!problem.empty()) Must(Status::Error(StatusCode::kPlugin, "%s", problem.c_str()));
  }

  std::unique_ptr<Scheduler> scheduler;
  StepGraph graph;
  std::unique_ptr<ExecutorModel> executor;
};

}  // namespace engine::conform
