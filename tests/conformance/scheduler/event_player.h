// Plays events by the names of tasks, for tests that say in which order what shall happen.
#pragma once

#include <string>
#include <vector>

#include "tests/conformance/scheduler/scheduler_rig.h"

namespace engine::test {

class EventPlayer {
 public:
  EventPlayer(Scheduler& scheduler, const StepGraph& graph)
      : scheduler_(scheduler), graph_(graph) {}
  explicit EventPlayer(const SchedulerRig& rig) : EventPlayer(*rig.scheduler, rig.graph) {}

  void Send(EventKind kind) { scheduler_.On({.kind = kind}); }
  void Ready(const std::vector<std::string>& names) { SendAll(EventKind::kTaskReady, names); }
  void Done(const std::vector<std::string>& names) { SendAll(EventKind::kTaskDone, names); }
  // Rank 0 started them.
  void Started(const std::vector<std::string>& names) { SendAll(EventKind::kTaskStarted, names); }

  // What the lane is told to run until it is told to hold.
  std::vector<std::string> Take(Lane lane) {
    std::vector<std::string> names;
    for (Action action = scheduler_.Next(lane); action.kind == ActionKind::kRun;
         action = scheduler_.Next(lane)) {
      names.emplace_back(graph_.tasks().at(action.task).name);
    }
    return names;
  }
  std::vector<std::string> TakeIo() { return Take(Lane::kIo); }
  std::vector<std::string> TakeCompute() { return Take(Lane::kCompute); }

 private:
  void SendAll(EventKind kind, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      scheduler_.On({.kind = kind, .task = graph_.Find(name)});
    }
  }

  Scheduler& scheduler_;
  const StepGraph& graph_;
};

}  // namespace engine::test
