// Every op once more, as plain loops in double precision: what a library is judged by.
#pragma once

#include <functional>
#include <vector>

#include "engine/tensor.h"

namespace engine::test {

using Values = std::vector<double>;

// Integers are held as doubles too.
struct Tensor {
  TensorSpec spec;
  Values values;

  const Shape& shape() const { return spec.shape; }
  int64_t rows() const { return spec.shape.Count(0, -1); }  // all dimensions but the last
  int64_t width() const { return spec.shape[-1]; }
};

// Inputs are data inputs, then parameters. `backward` returns one gradient per input, empty for
// those without. Of an op with several outputs, `forward` returns, and `dy` is, all of them, one
// behind the other.
struct ReferenceOp {
  std::function<Values(const std::vector<Tensor>& inputs)> forward;
  std::function<std::vector<Values>(const std::vector<Tensor>& inputs, const Values& dy)> backward;
};

ReferenceOp ReferenceLinear();  // also of tied_linear
ReferenceOp ReferenceMlp();
ReferenceOp ReferenceRelu();
ReferenceOp ReferenceGelu();
ReferenceOp ReferenceTanh();
ReferenceOp ReferenceAdd();  // also of accumulate
ReferenceOp ReferenceFlatten();
ReferenceOp ReferenceLayerNorm(double epsilon);
ReferenceOp ReferenceAddLayerNorm(double epsilon);
ReferenceOp ReferenceEmbedding();
ReferenceOp ReferenceAttention(int64_t heads, bool causal);
ReferenceOp ReferenceSoftmaxCrossEntropy();

}  // namespace engine::test
