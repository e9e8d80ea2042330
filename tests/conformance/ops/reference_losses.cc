#include <algorithm>
#include <cmath>

#include "tests/conformance/ops/reference_ops.h"

namespace engine::test {
namespace {

// Of target `i` of so many: that of its sample.
double SampleWeight(Inputs inputs, size_t i, size_t targets) {
  for (size_t k = 2; k < inputs.size(); ++k) {
    const Values& weights = inputs[k].values;
    if (inputs[k].spec.batched != 0) return weights[i * weights.size() / targets];
  }
  return 1;
}

Values ClassWeights(Inputs inputs) {
  for (size_t k = 2; k < inputs.size(); ++k) {
    if (inputs[k].spec.batched == 0) return inputs[k].values;
  }
  return Values(At(inputs[0].width()), 1.0);
}

Values Finish(const Values& sums, const Options& attributes) {
  const double counts = attributes.Bool("auxiliary") ? 0 : 1;
  return {attributes.Float("weight") * sums[0], counts * sums[1], counts * sums[2]};
}

template <typename Loss>
Values ElementLoss(Inputs inputs, const Options& attributes, bool classes, const Loss& loss) {
  Values sums(3);
  const Values &x = inputs[0].values, &t = inputs[1].values;
  for (size_t i = 0; i < x.size(); ++i) {
    const double weight = SampleWeight(inputs, i, x.size());
    sums[0] += weight * loss(x[i], t[i]);
    sums[1] += weight;
    sums[2] += classes && (x[i] > 0) == (t[i] > 0.5) ? weight : 0;
  }
  return Finish(sums, attributes);
}

}  // namespace

Values ReferenceSoftmaxCrossEntropy(Inputs inputs, const Options& attributes) {
  const auto width = At(inputs[0].width()), rows = inputs[1].values.size();
  const double smoothing = attributes.Float("label_smoothing");
  const Values w = ClassWeights(inputs);
  Values sums(3);
  for (size_t row = 0; row < rows; ++row) {
    const auto target = static_cast<int64_t>(inputs[1].values[row]);
    if (target == attributes.Int("ignore_index")) continue;
    const double* const x = &inputs[0].values[row * width];
    const double* const largest = std::max_element(x, x + width);
    double sum = 0;
    for (size_t c = 0; c < width; ++c) sum += std::exp(x[c] - *largest);
    const double log_sum = *largest + std::log(sum);
    double loss = (1 - smoothing) * w[At(target)] * (log_sum - x[target]);
    for (size_t c = 0; c < width; ++c) {
      loss += smoothing / static_cast<double>(width) * w[c] * (log_sum - x[c]);
    }
    const double sample = SampleWeight(inputs, row, rows);
    sums[0] += sample * loss;
    sums[1] += sample * w[At(target)];
    sums[2] += largest - x == target ? sample * w[At(target)] : 0;
  }
  return Finish(sums, attributes);
}

Values ReferenceMeanSquaredError(Inputs inputs, const Options& attributes) {
  return ElementLoss(inputs, attributes, false,
                     [](double x, double t) { return (x - t) * (x - t); });
}

Values ReferenceMeanAbsoluteError(Inputs inputs, const Options& attributes) {
  return ElementLoss(inputs, attributes, false, [](double x, double t) { return std::abs(x - t); });
}

Values ReferenceHuber(Inputs inputs, const Options& attributes) {
  const double delta = attributes.Float("delta");
  return ElementLoss(inputs, attributes, false, [=](double x, double t) {
    const double d = std::abs(x - t);
    return d <= delta ? d * d / 2 : delta * (d - delta / 2);
  });
}

Values ReferenceBinaryCrossEntropy(Inputs inputs, const Options& attributes) {
  const double positive = attributes.Float("pos_weight");
  return ElementLoss(inputs, attributes, true, [=](double x, double t) {
    const double p = 1 / (1 + std::exp(-x));
    return -(positive * t * std::log(p) + (1 - t) * std::log(1 - p));
  });
}

}  // namespace engine::test
