// What a run says of some parameters of its model.
#pragma once

#include <span>

#include "core/graph/graph.h"
#include "core/train/run_config.h"
#include "engine/status.h"

namespace engine::train {

// Multiplies the factors of each parameter by those of its group. kConfig names a prefix that fits
// no parameter.
Status ScaleParameters(std::span<const ParameterGroup> groups, graph::Graph* graph);

// For TrainOptions::sparse_pull: kConfig when no parameter that is trained is a row table.
Status CheckHasRowTables(const graph::Graph& graph);

}  // namespace engine::train
