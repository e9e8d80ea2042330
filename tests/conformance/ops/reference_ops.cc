#include "tests/conformance/ops/reference_ops.h"

#include <cmath>
#include <memory>

#include "tests/conformance/ops/reference_array_ops.h"
#include "tests/conformance/ops/reference_attention.h"

namespace engine::test {
namespace {

template <Statistics::Of kOf>
Values Norm(Inputs inputs, const Options& attributes) {
  return ReferenceNorm(inputs, Statistics(inputs[0], kOf), attributes.Float("epsilon"));
}

uint64_t Finalise(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

uint64_t Mix(uint64_t bits) {
  return Finalise(bits + 0x9e3779b97f4a7c15u);
}

// Whether element `position` of the batch of all ranks is kept. The function is the same in all op
// libraries, so that a run on other devices sees the same masks: a stream of 64-bit numbers for each seed, step and node, and half of one for each position.
bool DropoutKeeps(double rate, const RandomKey& key, uint64_t position) {
  const uint64_t stream = Mix(Mix(Mix(key.seed) ^ key.step) ^ key.node);
  const uint64_t start = Mix(stream), increment = Mix(stream ^ 1) | 1;
  const uint64_t word = Finalise(start + position / 2 * increment);
  const uint64_t half = position % 2 == 0 ? word & 0xffffffffu : word >> 32;
  return static_cast<double>(half) >= std::round(rate * 0x1p32);
}

Values Product(Inputs inputs, bool transposed) {
  const size_t rows = At(inputs[0].rows()), width = At(inputs[0].width());
  const size_t units = At(inputs[1].shape()[transposed ? 1 : 0]);
  Values y(rows * units);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t unit = i % units;
    y[i] = inputs.size() > 2 ? inputs[2].values[unit] : 0;
    for (size_t k = 0; k < width; ++k) {
      y[i] += inputs[0].values[i / units * width + k] *
              inputs[1].values[transposed ? k * units + unit : unit * width + k];
    }
  }
  return y;
}

Values Linear(Inputs inputs, const Options& attributes) {
  return Product(inputs, attributes.Bool("transposed"));
}

Values TiedLinear(Inputs inputs, const Options&) {
  return Product(inputs, false);
}

// Inputs are x, then weight and bias of each of the two layers.
Values Mlp(Inputs inputs, const Options& attributes) {
  Tensor hidden = inputs[0];
  hidden.spec.shape[-1] = inputs[1].shape()[0];
  hidden.values = Product({inputs[0], inputs[1], inputs[2]}, false);
  hidden.values = ReferenceFunctions().at("gelu")({hidden}, attributes);
  return Product({hidden, inputs[3], inputs[4]}, false);
}

Values AddLayerNorm(Inputs inputs, const Options& attributes) {
  Values both = ReferenceArrayOps().at("add")({inputs[0], inputs[1]}, attributes);
  const Values y =
      Norm<Statistics::Of::kRows>({{inputs[0].spec, both}, inputs[2], inputs[3]}, attributes);
  both.insert(both.end(), y.begin(), y.end());
  return both;
}

Values Dropout(Inputs inputs, const Options& attributes) {
  const RandomKey key;
  const double rate = attributes.Float("rate");
  const uint64_t first = key.first_sample * At(inputs[0].shape().Count(1));
  Values y = inputs[0].values;
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] *= DropoutKeeps(rate, key, first + i) ? 1 / (1 - rate) : 0;
  }
  return y;
}

// Rows of a table, and of a second one by position.
Values Embedding(Inputs inputs, const Options&) {
  const size_t width = At(inputs[1].width()), length = At(inputs[0].width());
  Values y(inputs[0].values.size() * width);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t token = i / width, column = i % width;
    y[i] = inputs[1].values[static_cast<size_t>(inputs[0].values[token]) * width + column];
    if (inputs.size() > 2) y[i] += inputs[2].values[token % length * width + column];
  }
  return y;
}

Values Attention(Inputs inputs, const Options& attributes) {
  const Shape& qkv = inputs[0].shape();
  const int64_t heads = attributes.Int("heads"), size = qkv[2] / 3 / heads;
  const AttentionSizes sizes{qkv[0], qkv[1], heads, size, attributes.Bool("causal")};
  return ComputeAttention(sizes, inputs[0].values, {}).y;
}

}  // namespace

Statistics::Statistics(const Tensor& x, Of by)
    : of(by),
      width(At(x.width())),
      count(double(by == Of::kRows ? x.width() : x.rows())),
      mean(At(by == Of::kRows ? x.rows() : x.width()), 0.0),
      variance(mean) {
  for (size_t i = 0; i < x.values.size(); ++i) mean[GroupOf(i)] += x.values[i] / count;
  for (size_t i = 0; i < x.values.size(); ++i) {
    variance[GroupOf(i)] += std::pow(x.values[i] - mean[GroupOf(i)], 2) / count;
  }
}

// The affine part of a norm is by channel.
Values ReferenceNorm(Inputs inputs, const Statistics& statistics, double epsilon) {
  Values y = inputs[0].values;
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t group = statistics.GroupOf(i), channel = i % statistics.width;
    const double normal =
        (y[i] - statistics.mean[group]) / std::sqrt(statistics.variance[group] + epsilon);
    y[i] = normal * inputs[1].values[channel] + inputs[2].values[channel];
  }
  return y;
}

Formula ReferenceOf(const OpSample& sample, std::span<const OptionSpec> specs) {
  using Of = Statistics::Of;
  static const ReferenceFormulas formulas = {
      {"linear", Linear},
      {"tied_linear", TiedLinear},
      {"mlp", Mlp},
      {"layer_norm", Norm<Of::kRows>},
      {"add_layer_norm", AddLayerNorm},
      {"batch_norm", Norm<Of::kChannels>},
      {"dropout", Dropout},
      {"embedding", Embedding},
      {"attention", Attention},
      {"softmax_cross_entropy", ReferenceSoftmaxCrossEntropy},
      {"mean_squared_error", ReferenceMeanSquaredError},
      {"mean_absolute_error", ReferenceMeanAbsoluteError},
      {"huber", ReferenceHuber},
      {"binary_cross_entropy", ReferenceBinaryCrossEntropy},
      {"conv2d", ReferenceConv2d},
      {"conv_transpose2d", ReferenceConvTranspose2d},
      {"max_pool", ReferenceMaxPool},
      {"avg_pool", ReferenceAvgPool},
      {"global_avg_pool", ReferenceGlobalAvgPool},
      {"global_max_pool", ReferenceGlobalMaxPool},
      {"resize", ReferenceResize},
      {"group_norm", ReferenceGroupNorm},
      {"to_channels_last", ReferenceToChannelsLast},
      {"to_channels_first", ReferenceToChannelsFirst}};
  const auto attributes = std::make_shared<OptionValues>(specs, sample.op, sample.attributes);
  for (const ReferenceFormulas* some : {&formulas, &ReferenceFunctions(), &ReferenceArrayOps()}) {
    const auto found = some->find(sample.op);
    if (found == some->end()) continue;
    return [=](Inputs inputs) { return found->second(inputs, attributes->options()); };
  }
  return {};
}

}  // namespace engine::test
