#include "tests/conformance/ops/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tests/conformance/ops/reference_attention.h"
#include "tests/conformance/ops/reference_terms.h"

namespace engine::test {
namespace {

// y = f(x) and dx = dy * slope(x).
ReferenceOp Elementwise(double (*f)(double), double (*slope)(double)) {
  ReferenceOp op;
  op.forward = [f](const std::vector<Tensor>& inputs) {
    Values y = inputs[0].values;
    std::transform(y.begin(), y.end(), y.begin(), f);
    return y;
  };
  op.backward = [slope](const std::vector<Tensor>& inputs, const Values& dy) {
    Values dx = dy;
    for (size_t i = 0; i < dx.size(); ++i) dx[i] *= slope(inputs[0].values[i]);
    return std::vector<Values>{dx};
  };
  return op;
}

double GeluArgument(double x) {
  return std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
}

double Gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(GeluArgument(x)));
}

double GeluSlope(double x) {
  const double t = std::tanh(GeluArgument(x));
  const double inner = std::sqrt(2.0 / std::numbers::pi) * (1.0 + 3.0 * 0.044715 * x * x);
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner;
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

std::vector<Values> NormBackward(const std::vector<Tensor>& inputs, const Values& dy,
                                 const Statistics& statistics, double epsilon) {
  const Tensor& x = inputs[0];
  const Values& weight = inputs[1].values;
  const auto deviation = [&](size_t group) {
    return std::sqrt(statistics.variance[group] + epsilon);
  };
  const auto normal = [&](size_t i) {
    const size_t group = statistics.GroupOf(i);
    return (x.values[i] - statistics.mean[group]) / deviation(group);
  };
  Values dx(dy.size()), dweight(weight.size(), 0.0), dbias(weight.size(), 0.0);
  Values mean(statistics.mean.size(), 0.0), slope(mean.size(), 0.0);  // of dy * weight, by group
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t group = statistics.GroupOf(i), channel = i % statistics.width;
    dweight[channel] += dy[i] * normal(i);
    dbias[channel] += dy[i];
    mean[group] += dy[i] * weight[channel] / statistics.count;
    slope[group] += dy[i] * weight[channel] * normal(i) / statistics.count;
  }
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t group = statistics.GroupOf(i), channel = i % statistics.width;
    dx[i] = (dy[i] * weight[channel] - mean[group] - normal(i) * slope[group]) / deviation(group);
  }
  return {dx, dweight, dbias, {}, {}};
}

ReferenceOp ReferenceNorm(Statistics::Of of, double epsilon) {
  return {[=](const std::vector<Tensor>& inputs) {
            return NormForward(inputs, Statistics(inputs[0], of), epsilon);
          },
          [=](const std::vector<Tensor>& inputs, const Values& dy) {
            return NormBackward(inputs, dy, Statistics(inputs[0], of), epsilon);
          }};
}

double LogSumExp(const double* x, int64_t width) {
  const double largest = *std::max_element(x, x + width);
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

Values LossForward(const std::vector<Tensor>& inputs) {
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

std::vector<Values> LossBackward(const std::vector<Tensor>& inputs, const Values& dy) {
  const int64_t width = inputs[0].width();
  Values dx(inputs[0].values.size(), 0.0);
  for (size_t row = 0; row < inputs[1].values.size(); ++row) {
    const auto target = static_cast<int64_t>(inputs[1].values[row]);
    if (target < 0) continue;
    const double* x = inputs[0].values.data() + static_cast<int64_t>(row) * width;
    const double log_sum = LogSumExp(x, width);
    for (int64_t i = 0; i < width; ++i) {
      dx[row * At(width) + At(i)] = dy[0] * (std::exp(x[i] - log_sum) - (i == target ? 1.0 : 0.0));
    }
  }
  return {dx, {}};
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

ReferenceOp ReferenceLinear() {
  const auto shape = [](const std::vector<Tensor>& inputs) {
    return Shape{inputs[0].rows(), inputs[1].shape()[0]};
  };
  return SumOfTerms(shape, [](const std::vector<Tensor>& inputs, auto terms) {
    const size_t rows = At(inputs[0].rows()), width = At(inputs[0].width());
    const size_t units = At(inputs[1].shape()[0]);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t u = 0; u < units; ++u) {
        if (inputs.size() > 2) terms.Add(2, u, r * units + u);
        for (size_t k = 0; k < width; ++k) {
          terms.Multiply(r * width + k, u * width + k, r * units + u);
        }
      }
    }
  });
}

// Inputs are x, then weight and bias of each of the two layers.
ReferenceOp ReferenceMlp() {
  // The inputs of the two layers; `before` becomes what gelu is applied to.
  using Inputs = std::vector<Tensor>;
  const ReferenceOp linear = ReferenceLinear();
  const auto layers = [=](const Inputs& inputs, Values* before) {
    const Inputs fc(inputs.begin(), inputs.begin() + 3);
    *before = linear.forward(fc);
    Tensor hidden = inputs[0];
    hidden.spec.shape[-1] = inputs[1].shape()[0];
    hidden.values.resize(before->size());
    std::transform(before->begin(), before->end(), hidden.values.begin(), Gelu);
    return std::pair{fc, Inputs{hidden, inputs[3], inputs[4]}};
  };
  return {[=](const Inputs& inputs) {
            Values before;
            return linear.forward(layers(inputs, &before).second);
          },
          [=](const Inputs& inputs, const Values& dy) {
            Values before;
            const auto [fc, proj] = layers(inputs, &before);
            std::vector<Values> behind = linear.backward(proj, dy);
            for (size_t i = 0; i < before.size(); ++i) behind[0][i] *= GeluSlope(before[i]);
            std::vector<Values> all = linear.backward(fc, behind[0]);
            all.insert(all.end(), behind.begin() + 1, behind.end());
            return all;
          }};
}

ReferenceOp ReferenceRelu() {
  return Elementwise([](double x) { return x > 0 ? x : 0.0; },
                     [](double x) { return x > 0 ? 1.0 : 0.0; });
}

ReferenceOp ReferenceGelu() {
  return Elementwise(Gelu, GeluSlope);
}

ReferenceOp ReferenceTanh() {
  return Elementwise([](double x) { return std::tanh(x); },
                     [](double x) { return 1.0 - std::tanh(x) * std::tanh(x); });
}

ReferenceOp ReferenceAdd() {
  return SumOfTerms(LikeInput, [](const std::vector<Tensor>& inputs, auto terms) {
    for (size_t i = 0; i < inputs[0].values.size(); ++i) {
      terms.Add(0, i, i);
      terms.Add(1, i, i);
    }
  });
}

ReferenceOp ReferenceFlatten() {
  return SumOfTerms(LikeInput, [](const std::vector<Tensor>& inputs, auto terms) {
    for (size_t i = 0; i < inputs[0].values.size(); ++i) terms.Add(0, i, i);
  });
}

ReferenceOp ReferenceLayerNorm(double epsilon) {
  return ReferenceNorm(Statistics::Of::kRows, epsilon);
}

ReferenceOp ReferenceAddLayerNorm(double epsilon) {
  // The inputs of the layer_norm.
  static constexpr auto kSum = [](const std::vector<Tensor>& inputs) {
    std::vector<Tensor> norm = {inputs[0], inputs[2], inputs[3]};
    for (size_t i = 0; i < norm[0].values.size(); ++i) norm[0].values[i] += inputs[1].values[i];
    return norm;
  };
  const ReferenceOp layer_norm = ReferenceLayerNorm(epsilon);
  return {[=](const std::vector<Tensor>& inputs) {
            const std::vector<Tensor> norm = kSum(inputs);
            Values both = norm[0].values;
            const Values y = layer_norm.forward(norm);
            both.insert(both.end(), y.begin(), y.end());
            return both;
          },
          [=](const std::vector<Tensor>& inputs, const Values& dy) {
            const auto half = dy.begin() + static_cast<ptrdiff_t>(dy.size() / 2);
            std::vector<Values> of_norm = layer_norm.backward(kSum(inputs), Values(half, dy.end()));
            Values& dx = of_norm[0];
            for (size_t i = 0; i < dx.size(); ++i) dx[i] += dy[i];
            return std::vector<Values>{dx, dx, of_norm[1], of_norm[2]};
          }};
}

ReferenceOp ReferenceBatchNorm(double epsilon) {
  return ReferenceNorm(Statistics::Of::kChannels, epsilon);
}

ReferenceOp ReferenceBatchNormEvaluation(double epsilon) {
  return {[epsilon](const std::vector<Tensor>& inputs) {
            Statistics running(inputs[0], Statistics::Of::kChannels);
            running.mean = inputs[3].values;
            running.variance = inputs[4].values;
            return NormForward(inputs, running, epsilon);
          },
          {}};
}

ReferenceOp ReferenceDropout(double rate, const RandomKey& key) {
  return SumOfTerms(LikeInput, [=](const std::vector<Tensor>& inputs, auto terms) {
    const uint64_t first = key.first_sample * At(inputs[0].shape().Count(1));
    for (size_t i = 0; i < inputs[0].values.size(); ++i) {
      if (DropoutKeeps(rate, key, first + i)) terms.Add(0, i, i, 1 / (1 - rate));
    }
  });
}

// Rows of a table, and of a second one by position.
ReferenceOp ReferenceEmbedding() {
  const auto shape = [](const std::vector<Tensor>& inputs) {
    return Shape{inputs[0].shape().Count(), inputs[1].width()};
  };
  return SumOfTerms(shape, [](const std::vector<Tensor>& inputs, auto terms) {
    const size_t width = At(inputs[1].width());
    for (size_t i = 0; i < inputs[0].values.size(); ++i) {
      const auto row = static_cast<size_t>(inputs[0].values[i]);
      const size_t position = i % At(inputs[0].shape()[1]);
      for (size_t c = 0; c < width; ++c) {
        terms.Add(1, row * width + c, i * width + c);
        if (inputs.size() > 2) terms.Add(2, position * width + c, i * width + c);
      }
    }
  });
}

ReferenceOp ReferenceAttention(int64_t heads, bool causal) {
  const auto compute = [=](const Tensor& qkv, const Values& dy) {
    const Shape& shape = qkv.shape();
    return ComputeAttention({shape[0], shape[1], heads, shape[2] / 3 / heads, causal}, qkv.values,
                            dy);
  };
  return {[=](const std::vector<Tensor>& inputs) { return compute(inputs[0], {}).y; },
          [=](const std::vector<Tensor>& inputs, const Values& dy) {
            return std::vector<Values>{compute(inputs[0], dy).dqkv};
          }};
}

ReferenceOp ReferenceSoftmaxCrossEntropy() {
  return {LossForward, LossBackward};
}

}  // namespace engine::test
