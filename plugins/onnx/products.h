// Products of matrices, for handlers and for the patterns that contain one.
#pragma once

#include "engine/status.h"
#include "lowering.h"

namespace engine::onnx {

// y = x w + bias with a matrix w of parameters, (K, N) in its logical order; `bias`, of N parameters,
// may be null. Dimensions of x but the last stay where they are. Sets output 0.
Status LowerLinear(Lowering& lowering, const Node& node, const Value& x, const Value& weight,
                   const Value* bias);
// Whether LowerLinear takes it as a weight, or as a bias of N units.
bool IsMatrix(const Value& value);
bool IsVector(const Value& value, int64_t extent);
// y = scale a b, of which dimensions before the last two broadcast.
Status LowerProduct(Lowering& lowering, const Node& node, Value a, Value b, double scale);

}  // namespace engine::onnx
