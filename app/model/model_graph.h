// The graph of the model that a run trains, and what the run says of some of its parameters.
#pragma once

#include <cstdint>
#include <span>

#include "app/model/graph_builder.h"
#include "core/base/rank_context.h"
#include "core/train/run_config.h"
#include "engine/dataset.h"
#include "engine/status.h"

namespace engine::model {

// What a model is asked for to work on `max_samples` samples of this data at once. The tensors of
// `info` are borrowed.
ModelRequest RequestFor(const DatasetInfo& info, int64_t max_samples, bool with_loss);

// The graph of the model that `config` chooses, with what it says of frozen parameters and groups.
Result<graph::Graph> BuildGraph(const train::RunConfig& config, base::RankContext& rank,
                                ModelRequest request, const plugin::OpFactory& ops);

// Multiplies the factors of each parameter by those of its group. kConfig names a prefix that fits
// no parameter.
Status ScaleParameters(std::span<const train::ParameterGroup> groups, graph::Graph* graph);

}  // namespace engine::model
