#include "tests/conformance/ops/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <string_view>

#include "tests/conformance/ops/reference_attention.h"

namespace engine::test {
namespace {

Formula Elementwise(double (*f)(double)) {
  return [f](const std::vector<Tensor>& inputs) {
    Values y = inputs[0].values;
    std::transform(y.begin(), y.end(), y.begin(), f);
    return y;
  };
}

double Gelu(double x) {
  return 0.5 * x *
         (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

// The affine part of a norm is by channel; `statistics` are those of x, or others.
Values NormForward(const std::vector<Tensor>& inputs, const Statistics& statistics,
                   double epsilon) {
  Values y = inputs[0].values;
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t group = statistics.GroupOf(i), channel = i % statistics.width;
    const double normal =
        (y[i] - statistics.mean[group]) / std::sqrt(statistics.variance[group] + epsilon);
    y[i] = normal * inputs[1].values[channel] + inputs[2].values[channel];
  }
  return y;
}

Formula Norm(Statistics::Of of, double epsilon) {
  return [=](const std::vector<Tensor>& inputs) {
    return NormForward(inputs, Statistics(inputs[0], of), epsilon);
  };
}

double LogSumExp(const double* x, int64_t width) {
  const double largest = *std::max_element(x, x + width);
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

Values Loss(const std::vector<Tensor>& inputs) {
  const int64_t width = inputs[0].width();
  Values y = {0, 0, 0};
  for (size_t row = 0; row < inputs[1].values.size(); ++row) {
    const auto target = static_cast<int64_t>(inputs[1].values[row]);
    if (target < 0) continue;
    const double* x = inputs[0].values.data() + static_cast<int64_t>(row) * width;
    y[0] += LogSumExp(x, width) - x[target];
    y[1] += 1;
    y[2] += std::max_element(x, x + width) - x == target ? 1 : 0;
  }
  return y;
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

Values Linear(const std::vector<Tensor>& inputs) {
  const size_t rows = At(inputs[0].rows()), width = At(inputs[0].width());
  const size_t units = At(inputs[1].shape()[0]);
  Values y(rows * units);
  for (size_t i = 0; i < y.size(); ++i) {
    const double* const x = &inputs[0].values[i / units * width];
    const double* const weight = &inputs[1].values[i % units * width];
    y[i] = inputs.size() > 2 ? inputs[2].values[i % units] : 0;
    for (size_t k = 0; k < width; ++k) y[i] += x[k] * weight[k];
  }
  return y;
}

// Inputs are x, then weight and bias of each of the two layers.
Values Mlp(const std::vector<Tensor>& inputs) {
  Tensor hidden = inputs[0];
  hidden.spec.shape[-1] = inputs[1].shape()[0];
  hidden.values = Linear({inputs[0], inputs[1], inputs[2]});
  std::ranges::transform(hidden.values, hidden.values.begin(), Gelu);
  return Linear({hidden, inputs[3], inputs[4]});
}

Values Add(const std::vector<Tensor>& inputs) {
  Values y = inputs[0].values;
  for (size_t i = 0; i < y.size(); ++i) y[i] += inputs[1].values[i];
  return y;
}

Values AddLayerNorm(const std::vector<Tensor>& inputs, double epsilon) {
  const Values sum = Add(inputs);
  const Values y = ReferenceLayerNorm(epsilon)({{inputs[0].spec, sum}, inputs[2], inputs[3]});
  Values both = sum;
  both.insert(both.end(), y.begin(), y.end());
  return both;
}

Values Dropout(const std::vector<Tensor>& inputs, double rate) {
  const RandomKey key;
  const uint64_t first = key.first_sample * At(inputs[0].shape().Count(1));
  Values y = inputs[0].values;
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] *= DropoutKeeps(rate, key, first + i) ? 1 / (1 - rate) : 0;
  }
  return y;
}

// Rows of a table, and of a second one by position.
Values Embedding(const std::vector<Tensor>& inputs) {
  const size_t width = At(inputs[1].width()), length = At(inputs[0].shape()[1]);
  Values y(inputs[0].values.size() * width);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t token = i / width, column = i % width;
    y[i] = inputs[1].values[static_cast<size_t>(inputs[0].values[token]) * width + column];
    if (inputs.size() > 2) y[i] += inputs[2].values[token % length * width + column];
  }
  return y;
}

Values Attention(const std::vector<Tensor>& inputs, int64_t heads, bool causal) {
  const Shape& qkv = inputs[0].shape();
  return ComputeAttention({qkv[0], qkv[1], heads, qkv[2] / 3 / heads, causal}, inputs[0].values, {})
      .y;
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

Formula ReferenceGelu() {
  return Elementwise(Gelu);
}

Formula ReferenceTanh() {
  return Elementwise([](double x) { return std::tanh(x); });
}

Formula ReferenceLayerNorm(double epsilon) {
  return Norm(Statistics::Of::kRows, epsilon);
}

Formula ReferenceBatchNorm(double epsilon) {
  return Norm(Statistics::Of::kChannels, epsilon);
}

Formula ReferenceBatchNormEvaluation(double epsilon) {
  return [epsilon](const std::vector<Tensor>& inputs) {
    Statistics running(inputs[0], Statistics::Of::kChannels);
    running.mean = inputs[3].values;
    running.variance = inputs[4].values;
    return NormForward(inputs, running, epsilon);
  };
}

Formula ReferenceOf(const OpSample& sample, std::span<const OptionSpec> specs) {
  const OptionValues values(specs, sample.op, sample.attributes);
  const Options given = values.options();
  const auto number = [&](const char* name) { return given.Float(name); };
  using Inputs = const std::vector<Tensor>&;
  const std::map<std::string_view, std::function<Formula()>> formulas = {
      {"linear", [] { return Linear; }},
      {"tied_linear", [] { return Linear; }},
      {"mlp", [] { return Mlp; }},
      {"relu", [] { return Elementwise([](double x) { return x > 0 ? x : 0.0; }); }},
      {"gelu", ReferenceGelu},
      {"tanh", ReferenceTanh},
      {"add", [] { return Add; }},
      {"accumulate", [] { return Add; }},
      {"flatten", [] { return Elementwise([](double x) { return x; }); }},
      {"layer_norm", [&] { return ReferenceLayerNorm(number("epsilon")); }},
      {"add_layer_norm",
       [&] {
         return [epsilon = number("epsilon")](Inputs x) { return AddLayerNorm(x, epsilon); };
       }},
      {"batch_norm", [&] { return ReferenceBatchNorm(number("epsilon")); }},
      {"dropout", [&] { return [rate = number("rate")](Inputs x) { return Dropout(x, rate); }; }},
      {"embedding", [] { return Embedding; }},
      {"attention",
       [&] {
         return [heads = given.Int("heads"), causal = given.Bool("causal")](Inputs x) {
           return Attention(x, heads, causal);
         };
       }},
      {"softmax_cross_entropy", [] { return Loss; }},
      {"conv2d", [&] { return ReferenceConv2d(given); }},
      {"max_pool", [&] { return ReferenceMaxPool(given); }},
      {"avg_pool", [&] { return ReferenceAvgPool(given); }},
      {"global_avg_pool", [] { return ReferenceGlobalAvgPool; }},
      {"to_channels_last", [] { return ReferenceToChannelsLast; }}};
  const auto found = formulas.find(sample.op);
  return found == formulas.end() ? Formula() : found->second();
}

}  // namespace engine::test
