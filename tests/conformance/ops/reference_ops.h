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
using Inputs = const std::vector<Tensor>&;
using Formula = std::function<Values(Inputs inputs)>;

// That of a sample's op with its attributes, `specs` being those of its library; empty: none is
// known. Of dropout, for the RandomKey of RunOptions.
Formula ReferenceOf(const OpSample& sample, std::span<const OptionSpec> specs);

// Mean and variance (biased) of each row or of each channel of x (..., C).
struct Statistics {
  enum class Of { kRows, kChannels };

  explicit Statistics(const Tensor& x, Of of = Of::kChannels);
  size_t GroupOf(size_t i) const { return of == Of::kRows ? i / width : i % width; }

  Of of;
  size_t width;
  double count = 0;  // of values of each
  Values mean, variance;
};

// Inputs: x, weight, bias. `statistics` are those of x, or others.
Values ReferenceNorm(Inputs inputs, const Statistics& statistics, double epsilon);

// In reference_image_ops.cc:
Values ReferenceConv2d(Inputs inputs, const Options& attributes);
Values ReferenceConvTranspose2d(Inputs inputs, const Options& attributes);
Values ReferenceMaxPool(Inputs inputs, const Options& attributes);
Values ReferenceAvgPool(Inputs inputs, const Options& attributes);
Values ReferenceGlobalAvgPool(Inputs inputs, const Options& attributes);
Values ReferenceGlobalMaxPool(Inputs inputs, const Options& attributes);
Values ReferenceResize(Inputs inputs, const Options& attributes);
Values ReferenceGroupNorm(Inputs inputs, const Options& attributes);
Values ReferenceToChannelsLast(Inputs inputs, const Options& attributes);
Values ReferenceToChannelsFirst(Inputs inputs, const Options& attributes);

// In reference_losses.cc:
Values ReferenceSoftmaxCrossEntropy(Inputs inputs, const Options& attributes);
Values ReferenceMeanSquaredError(Inputs inputs, const Options& attributes);
Values ReferenceMeanAbsoluteError(Inputs inputs, const Options& attributes);
Values ReferenceHuber(Inputs inputs, const Options& attributes);
Values ReferenceBinaryCrossEntropy(Inputs inputs, const Options& attributes);

}  // namespace engine::test
