// Ops each output of which is a sum of terms: a factor times an input, or a product of two inputs.
// Which terms there are is all that such an op has to say; both passes follow from it.
#pragma once

#include <vector>

#include "tests/conformance/ops/reference_ops.h"

namespace engine::test {

inline size_t At(int64_t i) {
  return static_cast<size_t>(i);
}

struct ForwardTerms {
  const std::vector<Tensor>& inputs;
  Values& y;

  void Add(size_t input, size_t from, size_t to, double factor = 1) {
    y[to] += factor * inputs[input].values[from];
  }
  // An element of input 0 times one of input 1.
  void Multiply(size_t x, size_t weight, size_t to) {
    y[to] += inputs[0].values[x] * inputs[1].values[weight];
  }
};

struct BackwardTerms {
  const std::vector<Tensor>& inputs;
  const Values& dy;
  std::vector<Values>& gradients;

  void Add(size_t input, size_t from, size_t to, double factor = 1) {
    gradients[input][from] += factor * dy[to];
  }
  void Multiply(size_t x, size_t weight, size_t to) {
    gradients[0][x] += dy[to] * inputs[1].values[weight];
    gradients[1][weight] += dy[to] * inputs[0].values[x];
  }
};

// `shape_of(inputs)` is the shape of y; `for_terms(inputs, terms)` calls Add and Multiply.
template <typename ShapeOf, typename ForTerms>
ReferenceOp SumOfTerms(ShapeOf shape_of, ForTerms for_terms) {
  return {[=](const std::vector<Tensor>& inputs) {
            Values y(At(Shape(shape_of(inputs)).Count()), 0.0);
            for_terms(inputs, ForwardTerms{inputs, y});
            return y;
          },
          [=](const std::vector<Tensor>& inputs, const Values& dy) {
            std::vector<Values> gradients;
            for (const Tensor& input : inputs) gradients.emplace_back(input.values.size(), 0.0);
            for_terms(inputs, BackwardTerms{inputs, dy, gradients});
            return gradients;
          }};
}

// The shape of input 0.
inline Shape LikeInput(const std::vector<Tensor>& inputs) {
  return inputs[0].shape();
}

}  // namespace engine::test
