// A trained model for other programs: its weights under PyTorch's names and layouts, or all of it, for
// inference, in ONNX (docs/weights.md).
#pragma once

#include <string>
#include <vector>

#include "app/checkpoint/safetensors.h"
#include "app/weights/made_ops.h"
#include "core/graph/graph.h"
#include "engine/status.h"

namespace engine::weights {

// A graph for inference, and what belongs to it. All is borrowed.
struct TrainedGraph {
  const graph::Graph& graph;
  const MadeOps& ops;
  std::vector<const float*> values;  // of each parameter
};

// The values of each parameter of `graph` in a checkpoint, which stays open. kBadData names one that
// is missing or has another shape.
Result<std::vector<const float*>> ValuesOf(const checkpoint::SafetensorsFile& file,
                                           const graph::Graph& graph);

// All parameters but constants, for torch.nn.Module.load_state_dict. kStorage.
Status ExportSafetensors(const std::string& path, const TrainedGraph& model);

struct OnnxOptions {
  std::string name;              // of the graph
  bool any_batch = true;         // else as many samples as the graph was built for
  bool fold_batch_norm = false;  // into the convolutions before them
};

// Returns what whoever uses the model has to know, in sentences: ops that ONNX does not have are nodes
// of the domain of their plugin. kConfig for a model beyond 2 GiB, which one file of ONNX cannot hold;
// kStorage.
Result<std::vector<std::string>> ExportOnnx(const std::string& path, const TrainedGraph& model,
                                            const OnnxOptions& options);

}  // namespace engine::weights
