// A scheduler that has planned and begun a step graph, and two ways to drive it: by a model of the
// executor, and event by event.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/plugin_under_test.h"
#include "tests/conformance/scheduler/executor_model.h"
#include "tests/conformance/scheduler/step_graph.h"

namespace engine::test {

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
  SchedulerRig(const std::string& path, const ModelSketch& model, std::mt19937* shuffle = nullptr,
               const OptionValues::Overrides& options = {})
      : SchedulerRig(CreateFrom<Scheduler>(path, options), model, shuffle) {}

  SchedulerRig(std::unique_ptr<Scheduler> its_scheduler, const ModelSketch& model,
               std::mt19937* shuffle = nullptr)
      : scheduler(std::move(its_scheduler)), graph(model) {
    Must(graph.Plan(*scheduler, shuffle));
    Must(scheduler->Begin(graph.tasks()));
    executor = std::make_unique<ExecutorModel>(*scheduler, graph);
  }

  // The random model of `seed`: equal seeds give equal rigs, as on the ranks of one run.
  static SchedulerRig Random(const std::string& path, uint32_t seed) {
    std::mt19937 random(seed);
    const ModelSketch model = ModelSketch::Random(random);
    return SchedulerRig(path, model, &random);
  }

  // Runs steps, in which the scheduler may make no mistake.
  Trace Run(const RunOptions& options) {
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

// Three layers with one bucket each, unless buckets are fused; bucket0 is that of the last layer.
inline ModelSketch ThreeLayers() {
  return ModelSketch::Chain({1024, 1024, 1024});
}

// Plays events by the names of tasks, for tests that say in which order what shall happen.
class EventPlayer {
 public:
  using Names = std::vector<std::string>;

  EventPlayer(const std::string& scheduler, const ModelSketch& model,
              const OptionValues::Overrides& options = {})
      : rig_(PluginPath(scheduler), model, nullptr, options) {}

  // The events of these tasks, and then the transfers that the scheduler starts.
  Names Ready(const Names& names) {
    Tell(EventKind::kTaskReady, names);
    return TakeIo();
  }
  Names Done(const Names& names) {
    Tell(EventKind::kTaskDone, names);
    return TakeIo();
  }
  Names Send(EventKind kind) {
    rig_.scheduler->On({.kind = kind});
    return TakeIo();
  }

  // The events alone.
  void Tell(EventKind kind, const Names& names) {
    for (const std::string& name : names) {
      rig_.scheduler->On({.kind = kind, .task = rig_.graph.Find(name)});
    }
  }

  // What a lane is told to run until it is told to hold.
  Names TakeIo() { return Take(Lane::kIo); }
  Names TakeCompute() { return Take(Lane::kCompute); }

  const TaskInfo& task(const std::string& name) const {
    return rig_.graph.tasks()[rig_.graph.Find(name)];
  }

 private:
  Names Take(Lane lane) {
    Names names;
    for (Action action = rig_.scheduler->Next(lane); action.kind == ActionKind::kRun;
         action = rig_.scheduler->Next(lane)) {
      names.emplace_back(rig_.graph.tasks().at(action.task).name);
    }
    return names;
  }

  SchedulerRig rig_;
};

}  // namespace engine::test
