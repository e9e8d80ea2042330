// What the parts of BuildTaskGraph have in common. Tasks are appended; the one made last is given
// what it waits for by After.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/exec/task_graph.h"

namespace engine::exec {

// The first four are borrowed; vectors of units and parameters have their size.
struct TaskGraphBuilder {
  const graph::Graph& graph;
  const graph::Program& program;
  const FlatLayout& layout;
  const TaskGraphOptions& options;

  std::vector<int32_t> task_of_instruction;
  std::vector<int32_t> unit_task;  // per unit: the last one of the chain of its gradients
  std::vector<int32_t> sent;       // per parameter: the last task before its transfer
  std::vector<std::pair<int32_t, int32_t>> opening;  // units and tasks that begin a step
  TaskGraph result;

  Task& Add(TaskKind kind, std::string name);
  Task& AddHook(size_t hook, HookWork work, const std::string& on);
  Task& AddTransfer(TransferData data, int32_t unit, const TransferStage& stage);
  Task& AddWireHook(HookWork work, int32_t unit);
  // The task made last waits for `earlier`.
  void After(int32_t earlier);
  int32_t LastId() const { return static_cast<int32_t>(result.tasks.size()) - 1; }

  bool packed() const;
  const std::vector<int32_t>& UsersOf(size_t position) const {
    return program.users_of_parameter[layout.parameters[position]];
  }
  const std::string& NameOf(size_t position) const {
    return graph.parameters[layout.parameters[position]].name;
  }
  int64_t CountOf(size_t position) const {
    return graph.parameters[layout.parameters[position]].shape.Count();
  }
  std::string NameOfUnit(int32_t unit) const;
  // The first forward task that reads the parameter.
  uint32_t FirstUse(size_t position) const {
    return static_cast<uint32_t>(task_of_instruction[UsersOf(position).front()]);
  }
  uint32_t NeededBy(const UnitLayout& unit) const;
  // The spans of a unit, or what this rank updates of them.
  std::vector<TaskSpan> SpansOf(int32_t unit, bool own_part) const;
};

}  // namespace engine::exec
