#pragma once

#include "core/exec/task_graph_builder.h"

namespace engine::exec {

// Adds what waits for the network, so it comes last in sequence: transfers of gradients after the
// first of each unit, reduced hooks, updates, transfers of parameters; and what the next step waits
// for.
void AddTail(TaskGraphBuilder* tasks);

}  // namespace engine::exec
