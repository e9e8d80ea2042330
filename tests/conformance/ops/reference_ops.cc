#include "tests/conformance/ops/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace engine::test {
namespace {

size_t At(int64_t i) {
  return static_cast<size_t>(i);
}

Values Zeros(const Tensor& like) {
  return Values(At(like.shape().Count()), 0.0);
}

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

Values LinearForward(const std::vector<Tensor>& inputs) {
  const Tensor& x = inputs[0];
  const int64_t units = inputs[1].shape()[0], width = x.width();
  Values y(At(x.rows() * units));
  for (int64_t r = 0; r < x.rows(); ++r) {
    for (int64_t u = 0; u < units; ++u) {
      double sum = inputs.size() > 2 ? inputs[2].values[At(u)] : 0.0;
      for (int64_t k = 0; k < width; ++k) {
        sum += x.values[At(r * width + k)] * inputs[1].values[At(u * width + k)];
      }
      y[At(r * units + u)] = sum;
    }
  }
  return y;
}

std::vector<Values> LinearBackward(const std::vector<Tensor>& inputs, const Values& dy) {
  const Tensor& x = inputs[0];
  const int64_t units = inputs[1].shape()[0], width = x.width();
  std::vector<Values> gradients;
  for (const Tensor& input : inputs) gradients.push_back(Zeros(input));
  for (int64_t r = 0; r < x.rows(); ++r) {
    for (int64_t u = 0; u < units; ++u) {
      const double g = dy[At(r * units + u)];
      for (int64_t k = 0; k < width; ++k) {
        gradients[0][At(r * width + k)] += g * inputs[1].values[At(u * width + k)];
        gradients[1][At(u * width + k)] += g * x.values[At(r * width + k)];
      }
      if (inputs.size() > 2) gradients[2][At(u)] += g;
    }
  }
  return gradients;
}

// The normalised rows of x, and 1 / deviation of each.
struct Normalised {
  Values values;
  Values scales;

  Normalised(const Tensor& x, double epsilon) : values(x.values), scales(At(x.rows())) {
    const int64_t width = x.width();
    for (int64_t r = 0; r < x.rows(); ++r) {
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < width; ++i) mean += x.values[At(r * width + i)] / double(width);
      for (int64_t i = 0; i < width; ++i) {
        variance += std::pow(x.values[At(r * width + i)] - mean, 2) / double(width);
      }
      scales[At(r)] = 1.0 / std::sqrt(variance + epsilon);
      for (int64_t i = 0; i < width; ++i) {
        values[At(r * width + i)] = (x.values[At(r * width + i)] - mean) * scales[At(r)];
      }
    }
  }
};

std::vector<Values> LayerNormBackward(const std::vector<Tensor>& inputs, const Values& dy,
                                      double epsilon) {
  const Tensor& x = inputs[0];
  const int64_t width = x.width();
  const Normalised normalised(x, epsilon);
  std::vector<Values> gradients = {Zeros(x), Zeros(inputs[1]), Zeros(inputs[2])};
  for (int64_t r = 0; r < x.rows(); ++r) {
    double mean = 0, slope = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double n = normalised.values[At(r * width + i)], d = dy[At(r * width + i)];
      mean += d * inputs[1].values[At(i)] / double(width);
      slope += d * inputs[1].values[At(i)] * n / double(width);
      gradients[1][At(i)] += d * n;
      gradients[2][At(i)] += d;
    }
    for (int64_t i = 0; i < width; ++i) {
      const size_t at = At(r * width + i);
      gradients[0][at] = normalised.scales[At(r)] *
                         (dy[at] * inputs[1].values[At(i)] - mean - normalised.values[at] * slope);
    }
  }
  return gradients;
}

// One head of one sample: where its q, k and v are, and its probabilities.
class ReferenceHead {
 public:
  ReferenceHead(const Tensor& qkv, int64_t sample, int64_t head, int64_t heads, bool causal)
      : qkv_(qkv),
        length_(qkv.shape()[1]),
        width_(qkv.shape()[2] / 3),
        size_(width_ / heads),
        sample_(sample),
        head_(head),
        probabilities_(At(length_ * length_), 0.0) {
    for (int64_t i = 0; i < length_; ++i) {
      const int64_t keys = causal ? i + 1 : length_;
      double largest = -INFINITY, sum = 0;
      for (int64_t j = 0; j < keys; ++j) largest = std::max(largest, Score(i, j));
      for (int64_t j = 0; j < keys; ++j) sum += std::exp(Score(i, j) - largest);
      for (int64_t j = 0; j < keys; ++j) P(i, j) = std::exp(Score(i, j) - largest) / sum;
    }
  }

  int64_t length() const { return length_; }
  int64_t size() const { return size_; }
  double scale() const { return 1.0 / std::sqrt(double(size_)); }
  double& P(int64_t i, int64_t j) { return probabilities_[At(i * length_ + j)]; }
  // Index in qkv of element d of row i of part 0 (q), 1 (k) or 2 (v), and in y.
  size_t In(int part, int64_t i, int64_t d) const {
    return At(((sample_ * length_ + i) * 3 + part) * width_ + head_ * size_ + d);
  }
  size_t Out(int64_t i, int64_t d) const {
    return At((sample_ * length_ + i) * width_ + head_ * size_ + d);
  }

 private:
  double Score(int64_t i, int64_t j) const {
    double dot = 0;
    for (int64_t d = 0; d < size_; ++d) {
      dot += qkv_.values[In(0, i, d)] * qkv_.values[In(1, j, d)];
    }
    return dot * scale();
  }

  const Tensor& qkv_;
  const int64_t length_, width_, size_, sample_, head_;
  Values probabilities_;
};

void HeadBackward(ReferenceHead& head, const Tensor& qkv, const Values& dy, Values& dqkv) {
  for (int64_t i = 0; i < head.length(); ++i) {
    Values dp(At(head.length()), 0.0);
    double dot = 0;
    for (int64_t j = 0; j < head.length(); ++j) {
      for (int64_t d = 0; d < head.size(); ++d) {
        dp[At(j)] += dy[head.Out(i, d)] * qkv.values[head.In(2, j, d)];
        dqkv[head.In(2, j, d)] += head.P(i, j) * dy[head.Out(i, d)];
      }
      dot += head.P(i, j) * dp[At(j)];
    }
    for (int64_t j = 0; j < head.length(); ++j) {
      const double ds = head.P(i, j) * (dp[At(j)] - dot) * head.scale();
      for (int64_t d = 0; d < head.size(); ++d) {
        dqkv[head.In(0, i, d)] += ds * qkv.values[head.In(1, j, d)];
        dqkv[head.In(1, j, d)] += ds * qkv.values[head.In(0, i, d)];
      }
    }
  }
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
  Values dx = Zeros(inputs[0]);
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

}  // namespace

ReferenceOp ReferenceLinear() {
  return {LinearForward, LinearBackward};
}

// Inputs are x, then weight and bias of each of the two layers.
ReferenceOp ReferenceMlp() {
  // The inputs of the two layers; `before` becomes what gelu is applied to.
  using Inputs = std::vector<Tensor>;
  const auto layers = [](const Inputs& inputs, Values* before) {
    const Inputs fc(inputs.begin(), inputs.begin() + 3);
    *before = LinearForward(fc);
    Tensor hidden = inputs[0];
    hidden.spec.shape[-1] = inputs[1].shape()[0];
    hidden.values.resize(before->size());
    std::transform(before->begin(), before->end(), hidden.values.begin(), Gelu);
    return std::pair{fc, Inputs{hidden, inputs[3], inputs[4]}};
  };
  return {[=](const Inputs& inputs) {
            Values before;
            return LinearForward(layers(inputs, &before).second);
          },
          [=](const Inputs& inputs, const Values& dy) {
            Values before;
            const auto [fc, proj] = layers(inputs, &before);
            std::vector<Values> behind = LinearBackward(proj, dy);
            for (size_t i = 0; i < before.size(); ++i) behind[0][i] *= GeluSlope(before[i]);
            std::vector<Values> all = LinearBackward(fc, behind[0]);
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
  return {[](const std::vector<Tensor>& inputs) {
            Values y = inputs[0].values;
            for (size_t i = 0; i < y.size(); ++i) y[i] += inputs[1].values[i];
            return y;
          },
          [](const std::vector<Tensor>&, const Values& dy) {
            return std::vector<Values>{dy, dy};
          }};
}

ReferenceOp ReferenceFlatten() {
  return {[](const std::vector<Tensor>& inputs) { return inputs[0].values; },
          [](const std::vector<Tensor>&, const Values& dy) { return std::vector<Values>{dy}; }};
}

ReferenceOp ReferenceLayerNorm(double epsilon) {
  return {[epsilon](const std::vector<Tensor>& inputs) {
            Values y = Normalised(inputs[0], epsilon).values;
            for (size_t i = 0; i < y.size(); ++i) {
              const size_t column = i % At(inputs[0].width());
              y[i] = y[i] * inputs[1].values[column] + inputs[2].values[column];
            }
            return y;
          },
          [epsilon](const std::vector<Tensor>& inputs, const Values& dy) {
            return LayerNormBackward(inputs, dy, epsilon);
          }};
}

ReferenceOp ReferenceAddLayerNorm(double epsilon) {
  // The inputs of the layer_norm.
  static constexpr auto kSum = [](const std::vector<Tensor>& inputs) {
    std::vector<Tensor> norm = {inputs[0], inputs[2], inputs[3]};
    for (size_t i = 0; i < norm[0].values.size(); ++i) norm[0].values[i] += inputs[1].values[i];
    return norm;
  };
  return {[epsilon](const std::vector<Tensor>& inputs) {
            const std::vector<Tensor> norm = kSum(inputs);
            Values both = norm[0].values;
            const Values y = ReferenceLayerNorm(epsilon).forward(norm);
            both.insert(both.end(), y.begin(), y.end());
            return both;
          },
          [epsilon](const std::vector<Tensor>& inputs, const Values& dy) {
            const auto half = dy.begin() + static_cast<ptrdiff_t>(dy.size() / 2);
            std::vector<Values> of_norm =
                LayerNormBackward(kSum(inputs), Values(half, dy.end()), epsilon);
            Values& dx = of_norm[0];
            for (size_t i = 0; i < dx.size(); ++i) dx[i] += dy[i];
            return std::vector<Values>{dx, dx, of_norm[1], of_norm[2]};
          }};
}

ReferenceOp ReferenceEmbedding() {
  // The index, in the table of `input`, of element (i, c) of the output.
  static constexpr auto kIndex = [](const std::vector<Tensor>& inputs, size_t input, int64_t i,
                                    int64_t c) {
    const int64_t row =
        input == 1 ? static_cast<int64_t>(inputs[0].values[At(i)]) : i % inputs[0].shape()[1];
    return At(row * inputs[input].width() + c);
  };
  return {[](const std::vector<Tensor>& inputs) {
            const int64_t width = inputs[1].width(), count = inputs[0].shape().Count();
            Values y(At(count * width), 0.0);
            for (size_t input = 1; input < inputs.size(); ++input) {
              for (int64_t i = 0; i < count * width; ++i) {
                y[At(i)] += inputs[input].values[kIndex(inputs, input, i / width, i % width)];
              }
            }
            return y;
          },
          [](const std::vector<Tensor>& inputs, const Values& dy) {
            const int64_t width = inputs[1].width();
            std::vector<Values> gradients = {{}};
            for (size_t input = 1; input < inputs.size(); ++input) {
              gradients.push_back(Zeros(inputs[input]));
              for (int64_t i = 0; i < static_cast<int64_t>(dy.size()); ++i) {
                gradients[input][kIndex(inputs, input, i / width, i % width)] += dy[At(i)];
              }
            }
            return gradients;
          }};
}

ReferenceOp ReferenceAttention(int64_t heads, bool causal) {
  return {[heads, causal](const std::vector<Tensor>& inputs) {
            const Tensor& qkv = inputs[0];
            Values y(At(qkv.shape().Count() / 3), 0.0);
            for (int64_t i = 0; i < qkv.shape()[0] * heads; ++i) {
              ReferenceHead head(qkv, i / heads, i % heads, heads, causal);
              for (int64_t row = 0; row < head.length(); ++row) {
                for (int64_t j = 0; j < head.length(); ++j) {
                  for (int64_t d = 0; d < head.size(); ++d) {
                    y[head.Out(row, d)] += head.P(row, j) * qkv.values[head.In(2, j, d)];
                  }
                }
              }
            }
            return y;
          },
          [heads, causal](const std::vector<Tensor>& inputs, const Values& dy) {
            Values dqkv = Zeros(inputs[0]);
            for (int64_t i = 0; i < inputs[0].shape()[0] * heads; ++i) {
              ReferenceHead head(inputs[0], i / heads, i % heads, heads, causal);
              HeadBackward(head, inputs[0], dy, dqkv);
            }
            return std::vector<Values>{dqkv};
          }};
}

ReferenceOp ReferenceSoftmaxCrossEntropy() {
  return {LossForward, LossBackward};
}

}  // namespace engine::test
