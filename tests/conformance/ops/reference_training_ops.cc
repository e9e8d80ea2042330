#include "tests/conformance/ops/reference_training_ops.h"

#include <cmath>

namespace engine::test {
namespace {

size_t At(int64_t i) {
  return static_cast<size_t>(i);
}

Values BatchNormForward(const std::vector<Tensor>& inputs, const ChannelStatistics& statistics,
                        double eps) {
  Values y = inputs[0].values;
  const size_t channels = At(inputs[0].width());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t c = i % channels;
    y[i] = (y[i] - statistics.mean[c]) / std::sqrt(statistics.variance[c] + eps) *
               inputs[1].values[c] +
           inputs[2].values[c];
  }
  return y;
}

std::vector<Values> BatchNormBackward(const std::vector<Tensor>& inputs, const Values& dy,
                                      double eps) {
  const Tensor& x = inputs[0];
  const ChannelStatistics statistics(x);
  const size_t channels = At(x.width());
  const auto deviation = [&](size_t c) { return std::sqrt(statistics.variance[c] + eps); };
  const auto normalised = [&](size_t i) {
    return (x.values[i] - statistics.mean[i % channels]) / deviation(i % channels);
  };
  Values dx(dy.size()), dweight(channels, 0.0), dbias(channels, 0.0);
  for (size_t i = 0; i < dy.size(); ++i) {
    dweight[i % channels] += dy[i] * normalised(i);
    dbias[i % channels] += dy[i];
  }
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t c = i % channels;
    const auto count = static_cast<double>(statistics.count);
    dx[i] = inputs[1].values[c] / deviation(c) *
            (dy[i] - dbias[c] / count - normalised(i) * dweight[c] / count);
  }
  return {dx, dweight, dbias, {}, {}};
}

uint64_t Finalise(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

uint64_t Mix(uint64_t bits) {
  return Finalise(bits + 0x9e3779b97f4a7c15u);
}

}  // namespace

ChannelStatistics::ChannelStatistics(const Tensor& x)
    : mean(At(x.width()), 0.0), variance(At(x.width()), 0.0), count(x.rows()) {
  const size_t channels = mean.size();
  const auto n = static_cast<double>(count);
  for (size_t i = 0; i < x.values.size(); ++i) mean[i % channels] += x.values[i] / n;
  for (size_t i = 0; i < x.values.size(); ++i) {
    variance[i % channels] += std::pow(x.values[i] - mean[i % channels], 2) / n;
  }
}

ReferenceOp ReferenceBatchNorm(double eps) {
  return {[eps](const std::vector<Tensor>& inputs) {
            return BatchNormForward(inputs, ChannelStatistics(inputs[0]), eps);
          },
          [eps](const std::vector<Tensor>& inputs, const Values& dy) {
            return BatchNormBackward(inputs, dy, eps);
          }};
}

ReferenceOp ReferenceBatchNormEvaluation(double eps) {
  return {[eps](const std::vector<Tensor>& inputs) {
            ChannelStatistics running(inputs[0]);
            running.mean = inputs[3].values;
            running.variance = inputs[4].values;
            return BatchNormForward(inputs, running, eps);
          },
          {}};
}

// A stream of 64-bit numbers for each seed, step and node, and half of one for each position.
bool DropoutKeeps(double rate, const RandomKey& key, uint64_t position) {
  const uint64_t stream = Mix(Mix(Mix(key.seed) ^ key.step) ^ key.node);
  const uint64_t start = Mix(stream), increment = Mix(stream ^ 1) | 1;
  const uint64_t word = Finalise(start + position / 2 * increment);
  const uint64_t half = position % 2 == 0 ? word & 0xffffffffu : word >> 32;
  return static_cast<double>(half) >= std::round(rate * 0x1p32);
}

ReferenceOp ReferenceDropout(double rate, const RandomKey& key) {
  const auto apply = [rate, key](const Tensor& shaped, Values values) {
    const uint64_t first = key.first_sample * static_cast<uint64_t>(shaped.shape().Count(1));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = DropoutKeeps(rate, key, first + i) ? values[i] / (1.0 - rate) : 0.0;
    }
    return values;
  };
  return {[apply](const std::vector<Tensor>& inputs) { return apply(inputs[0], inputs[0].values); },
          [apply](const std::vector<Tensor>& inputs, const Values& dy) {
            return std::vector<Values>{apply(inputs[0], dy)};
          }};
}

}  // namespace engine::test
