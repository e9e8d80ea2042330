// From a model plugin to a graph.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/graph/builder.h"
#include "engine/model.h"

namespace engine::graph {

struct ModelRequest {
  std::span<const SampleTensor> inputs, targets;  // of the data, borrowed
  int64_t max_samples = 1;
  bool with_loss = true;            // false: a graph for inference, which ends at the outputs
  std::vector<std::string> frozen;  // GraphBuilder::Finish
};

// The graph that `model` builds of the ops that `factory` makes. kConfig when the model does not fit
// the data or the ops, kPlugin when it breaks its contract.
Result<Graph> BuildModel(const Model& model, const ModelRequest& request, const OpFactory& factory);

}  // namespace engine::graph
