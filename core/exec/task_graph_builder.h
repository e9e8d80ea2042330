// What the parts of BuildTaskGraph have in common. Tasks are appended; the one made last is given
// what it waits for by After.
#pragma once

#include <string>
#include <vector>

#include "core/exec/task_graph.h"

namespace engine::exec {

// The first four are borrowed; vectors of buckets and parameters have their size.
struct TaskGraphBuilder {
  const graph::Graph& graph;
  const graph::Program& program;
  const FlatLayout& layout;
  const TaskGraphOptions& options;

  std::vector<int32_t> all;  // parameters: positions in the layout
  std::vector<int32_t> task_of_instruction;
  std::vector<int32_t> bucket_task;  // per bucket: the last one of the chain of its gradients
  // Per parameter: what makes its gradient, before it travels.
  std::vector<std::vector<int32_t>> sent;
  std::vector<int32_t> pull;  // per parameter: of its rows, which begins a step; or kNone
  TaskGraph result;

  Task& Add(TaskKind kind, std::string name);
  Task& AddHook(size_t hook, HookWork work, const std::string& on);
  Task& AddTransfer(TransferData data, int32_t bucket, const TransferStage& stage);
  Task& AddWireHook(HookWork work, int32_t bucket);
  // The task made last waits for `earlier`: one task, or each of several, perhaps named twice.
  void After(int32_t earlier);
  void After(const std::vector<int32_t>& earlier);
  int32_t LastId() const { return static_cast<int32_t>(result.tasks.size()) - 1; }

  const std::vector<int32_t>& UsersOf(int32_t position) const {
    return program.users_of_parameter[layout.parameters[position]];
  }
  const graph::Parameter& ParameterAt(int32_t position) const {
    return graph.parameters[layout.parameters[position]];
  }
  TaskSpan WholeOf(int32_t position) const {
    return {.parameter = position, .count = ParameterAt(position).shape.Count()};
  }
  std::string NameOfBucket(int32_t bucket) const;
  std::vector<int32_t> ParametersOf(int32_t bucket) const;
  // The first forward task that reads one of them.
  uint32_t NeededBy(const std::vector<int32_t>& positions) const;
  // The spans of a bucket, or what this rank updates of them.
  std::vector<TaskSpan> SpansOf(int32_t bucket, bool own_part) const;
};

// Adds what waits for the network, so it comes last in sequence: transfers of gradients after the
// first of each bucket, reduced hooks, updates, transfers of parameters; and what the next step waits
// for.
void AddTail(TaskGraphBuilder* tasks);

}  // namespace engine::exec
