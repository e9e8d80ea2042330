// Every op once more, as plain loops in double precision: what a library is judged by. Tensors of
// images are channels-last.
#pragma once

#include <cstdint>
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

// Inputs are data inputs, then parameters. `backward` returns one gradient per input, of no meaning
// for those without. Of an op with several outputs, `forward` returns, and `dy` is, all of them,
// one behind the other.
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

// ---- Of convolution nets

struct ReferenceWindow {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
};

ReferenceOp ReferenceConv2d(const ReferenceWindow& window);
ReferenceOp ReferenceMaxPool(const ReferenceWindow& window);
ReferenceOp ReferenceAvgPool(const ReferenceWindow& window);
ReferenceOp ReferenceGlobalAvgPool();
ReferenceOp ReferenceToChannelsLast();

// ---- That behave otherwise in evaluation

// Mean and variance (biased) of each row or of each channel of x (..., C).
struct Statistics {
  enum class Of { kRows, kChannels };

  Statistics(const Tensor& x, Of of);
  size_t GroupOf(size_t i) const { return of == Of::kRows ? i / width : i % width; }

  Of of;
  size_t width;
  double count = 0;  // of values of each
  Values mean, variance;
};

// Inputs: x, weight, bias, running mean, running variance. While it trains.
ReferenceOp ReferenceBatchNorm(double epsilon);
// In evaluation; it has no backward.
ReferenceOp ReferenceBatchNormEvaluation(double epsilon);

// What random numbers of an op are a function of, besides the position in a sample.
struct RandomKey {
  uint64_t seed = 17;
  uint64_t step = 3;
  uint64_t node = 5;
  uint64_t first_sample = 11;
};

ReferenceOp ReferenceDropout(double rate, const RandomKey& key);

}  // namespace engine::test
