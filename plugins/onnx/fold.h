// Shape arithmetic, and whatever else of a model depends on no sample: computed when the graph is
// built, by the formulas of ONNX's operator pages.
#pragma once

#include <span>
#include <vector>
#include <string>

#include "engine/status.h"
#include "model_file.h"
#include "tensor.h"

namespace engine::onnx {

// Whether Fold knows the type.
bool CanFold(const std::string& type);

// What the node gives for these inputs, null where an optional one is left out. kBadData where they
// do not fit.
Result<std::vector<Tensor>> Fold(const Node& node, std::span<const Tensor* const> inputs);

}  // namespace engine::onnx
