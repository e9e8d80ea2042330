// The initialisers of an ONNX model as weights.
#pragma once

#include <memory>
#include <string>

#include "app/weights/weight_file.h"
#include "engine/status.h"

namespace engine::weights {

// Also of a model that keeps them in files beside it (external data). See WeightFile::Open.
Result<std::unique_ptr<WeightFile>> OpenOnnxWeights(const std::string& path);

}  // namespace engine::weights
