// The tasks of one training step and what each waits for.
#pragma once

#include <string>
#include <vector>

#include "core/exec/layout.h"
#include "core/graph/memory_plan.h"
#include "engine/gradient_hook.h"
#include "engine/scheduler.h"

namespace engine {

constexpr uint32_t kStatisticsUnit = UINT32_MAX;

// What a kHook task does.
enum class HookWork { kApply, kObserve, kAllObserved };

struct Task {
  TaskInfo info;  // info.name points to `name`
  std::string name;
  int32_t instruction = kNone;  // kForward, kBackward, and kAccumulate tasks that add
  int32_t parameter = kNone;    // kAccumulate, kHook, kUpdate: position in FlatLayout::parameters
  int32_t hook = kNone;         // kHook: index in the chain
  HookWork hook_work = HookWork::kApply;
  int32_t dependency_count = 0;
  std::vector<uint32_t> successors;
};

// Everything a step consists of, in the order in which one thread would run it (so ids are sequence
// numbers):
//
//   forward ... TRANSFER(statistics), backward, [ADD], ACCUMULATE(p), local hooks(p),
//   TRANSFER(unit), reduced hooks(p), UPDATE(p), backward, ...
//
// A global hook stands between: OBSERVE of every parameter, then one task when all are observed,
// then APPLY.
struct TaskGraph {
  std::vector<Task> tasks;
  std::vector<TaskInfo> infos;  // of all tasks, for Scheduler::Begin
};

TaskGraph BuildTaskGraph(const Graph& graph, const Program& program, const MemoryPlan& plan,
                         const FlatLayout& layout, const std::vector<HookTraits>& hooks,
                         const std::vector<std::string>& hook_names);

}  // namespace engine
