// What exporters write as several nodes and the engine has one op for. Each function looks backwards
// from the node that a pattern ends in, and has made nothing when it says that it has not found one.
#pragma once

#include <string>
#include <string_view>

#include "engine/status.h"
#include "lowering.h"

namespace engine::onnx {

// The node that gives `value` if it is of this type and nobody else reads what it gives; casts between
// floating-point types and identities are passed over.
const Node* SoleProducer(Lowering& lowering, const std::string& value, std::string_view type);
// Of a commutative node: one of its inputs is a constant number, `other` is the other input.
bool HasScalar(Lowering& lowering, const Node& node, double* scalar, std::string* other);
bool IsNear(double a, double b);

// If the node ends a pattern, sets its output. Add: layer norm, group norm, a product with its bias.
// Mul: RMS norm, layer norm without a bias, GELU, SiLU, hard swish, Mish. MatMul: attention.
Result<bool> LowerNormPattern(Lowering& lowering, const Node& node);
Result<bool> LowerActivationPattern(Lowering& lowering, const Node& node);
Result<bool> LowerBiasPattern(Lowering& lowering, const Node& node);
Result<bool> LowerAttentionPattern(Lowering& lowering, const Node& node);

}  // namespace engine::onnx
