// A scheduler that is driven event by event.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/plugin_under_test.h"
#include "tools/conform/scheduler/scheduler_rig.h"

namespace engine::test {

inline std::unique_ptr<Scheduler> MakeScheduler(const std::string& name,
                                                const OptionValues::Overrides& options = {}) {
  return CreateFrom<Scheduler>(PluginPath(name), options);
}

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
      : rig_(MakeScheduler(scheduler, options), model) {}

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
