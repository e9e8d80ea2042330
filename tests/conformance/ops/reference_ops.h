// Every op once more, as plain loops in double precision: what a library is judged by. Tensors of
// images are channels-last.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/options.h"
#include "tools/conform/ops/op_sample.h"

namespace engine::test {

using namespace conform;

inline size_t At(int64_t i) {
  return static_cast<size_t>(i);
}

// From inputs (data, then parameters) to outputs, one behind the other. While it trains.
using Formula = std::function<Values(const std::vector<Tensor>& inputs)>;

// That of a sample's op with its attributes, `specs` being those of its library; empty: none is
// known. Of dropout, for the RandomKey of RunOptions.
Formula ReferenceOf(const OpSample& sample, std::span<const OptionSpec> specs);

Formula ReferenceGelu();
Formula ReferenceTanh();
Formula ReferenceLayerNorm(double epsilon);
// Inputs: x, weight, bias, running mean, running variance.
Formula ReferenceBatchNorm(double epsilon);
Formula ReferenceBatchNormEvaluation(double epsilon);
Formula ReferenceConv2d(const Options& attributes);
Formula ReferenceMaxPool(const Options& attributes);
Formula ReferenceAvgPool(const Options& attributes);
Values ReferenceGlobalAvgPool(const std::vector<Tensor>& inputs);
Values ReferenceToChannelsLast(const std::vector<Tensor>& inputs);

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

}  // namespace engine::test
