// Ops along a last dimension, for handlers and for patterns.
#pragma once

#include <string_view>
#include <vector>

#include "engine/status.h"
#include "lowering.h"

namespace engine::onnx {

// A value as a tensor whose last dimension are these axes, and where its elements then lie.
struct Last {
  ModelValue input;
  Layout layout;
};
// All other axes stay in order. kUnsupported for those of samples.
Result<Last> MakeLast(Lowering& lowering, const Node& node, const Value& x,
                      const std::vector<int>& inner);

// layer_norm or rms_norm over the last `over` dimensions; `bias` may be null. Sets output 0.
Status LowerNorm(Lowering& lowering, const Node& node, std::string_view op, const Value& x,
                 int over, const Value& weight, const Value* bias, double epsilon);
// x (N, C, ...) with weight and bias (C).
Status LowerGroupNorm(Lowering& lowering, const Node& node, const Value& x, int64_t groups,
                      const Value& weight, const Value& bias, double epsilon);

}  // namespace engine::onnx
