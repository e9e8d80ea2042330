#include "tests/conformance/ops/reference_image_ops.h"

#include <algorithm>
#include <cmath>

namespace engine::test {
namespace {

size_t At(int64_t i) {
  return static_cast<size_t>(i);
}

// The index of (b, h, w, c) in a tensor (B, H, W, C).
size_t At(const Shape& shape, int64_t b, int64_t h, int64_t w, int64_t c) {
  return At(((b * shape[1] + h) * shape[2] + w) * shape[3] + c);
}

Shape OutputShape(const ReferenceWindow& window, const Shape& x, int64_t channels) {
  const auto positions = [&](int64_t extent) {
    return (extent + 2 * window.padding - window.kernel) / window.stride + 1;
  };
  return {x[0], positions(x[1]), positions(x[2]), channels};
}

// Calls body(b, h, w, i, j, y, x) for each output (b, h, w) and each tap (i, j) that meets the
// input (y, x).
template <typename Body>
void ForTaps(const ReferenceWindow& window, const Shape& input, const Body& body) {
  const Shape output = OutputShape(window, input, 1);
  for (int64_t b = 0; b < output[0]; ++b) {
    for (int64_t h = 0; h < output[1]; ++h) {
      for (int64_t w = 0; w < output[2]; ++w) {
        for (int64_t i = 0; i < window.kernel; ++i) {
          for (int64_t j = 0; j < window.kernel; ++j) {
            const int64_t y = h * window.stride + i - window.padding;
            const int64_t x = w * window.stride + j - window.padding;
            if (0 <= y && y < input[1] && 0 <= x && x < input[2]) body(b, h, w, i, j, y, x);
          }
        }
      }
    }
  }
}

// Calls body(index in x, index in weight, index in y) for every product of a convolution.
template <typename Body>
void ForProducts(const ReferenceWindow& window, const std::vector<Tensor>& inputs,
                 const Body& body) {
  const Shape &x = inputs[0].shape(), &weight = inputs[1].shape();
  const Shape y = OutputShape(window, x, weight[3]);
  ForTaps(window, x,
          [&](int64_t b, int64_t h, int64_t w, int64_t i, int64_t j, int64_t yy, int64_t xx) {
            for (int64_t c = 0; c < x[3]; ++c) {
              for (int64_t o = 0; o < weight[3]; ++o) {
                body(At(x, b, yy, xx, c), At(weight, i, j, c, o), At(y, b, h, w, o));
              }
            }
          });
}

Values ConvForward(const ReferenceWindow& window, const std::vector<Tensor>& inputs) {
  const int64_t channels = inputs[1].width();
  Values y(At(OutputShape(window, inputs[0].shape(), channels).Count()), 0.0);
  for (size_t i = 0; inputs.size() > 2 && i < y.size(); ++i) {
    y[i] = inputs[2].values[i % At(channels)];
  }
  ForProducts(window, inputs, [&](size_t x, size_t weight, size_t at) {
    y[at] += inputs[0].values[x] * inputs[1].values[weight];
  });
  return y;
}

std::vector<Values> ConvBackward(const ReferenceWindow& window, const std::vector<Tensor>& inputs,
                                 const Values& dy) {
  std::vector<Values> gradients;
  for (const Tensor& input : inputs) gradients.emplace_back(input.values.size(), 0.0);
  ForProducts(window, inputs, [&](size_t x, size_t weight, size_t at) {
    gradients[0][x] += dy[at] * inputs[1].values[weight];
    gradients[1][weight] += dy[at] * inputs[0].values[x];
  });
  for (size_t i = 0; inputs.size() > 2 && i < dy.size(); ++i) {
    gradients[2][i % At(inputs[1].width())] += dy[i];
  }
  return gradients;
}

// Calls body(index in y, index in x) for every element of every window of a pool.
template <typename Body>
void ForPooled(const ReferenceWindow& window, const Shape& x, const Body& body) {
  const Shape y = OutputShape(window, x, x[3]);
  ForTaps(window, x,
          [&](int64_t b, int64_t h, int64_t w, int64_t, int64_t, int64_t yy, int64_t xx) {
            for (int64_t c = 0; c < x[3]; ++c) body(At(y, b, h, w, c), At(x, b, yy, xx, c));
          });
}

// Per output the index of its largest input.
std::vector<size_t> Largest(const ReferenceWindow& window, const Tensor& x) {
  constexpr size_t kUnset = SIZE_MAX;
  std::vector<size_t> largest(At(OutputShape(window, x.shape(), x.width()).Count()), kUnset);
  ForPooled(window, x.shape(), [&](size_t y, size_t at) {
    if (largest[y] == kUnset || x.values[at] > x.values[largest[y]]) largest[y] = at;
  });
  return largest;
}

}  // namespace

ReferenceOp ReferenceConv2d(const ReferenceWindow& window) {
  return {[window](const std::vector<Tensor>& inputs) { return ConvForward(window, inputs); },
          [window](const std::vector<Tensor>& inputs, const Values& dy) {
            return ConvBackward(window, inputs, dy);
          }};
}

ReferenceOp ReferenceMaxPool(const ReferenceWindow& window) {
  return {[window](const std::vector<Tensor>& inputs) {
            Values y;
            for (size_t at : Largest(window, inputs[0])) y.push_back(inputs[0].values[at]);
            return y;
          },
          [window](const std::vector<Tensor>& inputs, const Values& dy) {
            Values dx(inputs[0].values.size(), 0.0);
            const std::vector<size_t> largest = Largest(window, inputs[0]);
            for (size_t i = 0; i < dy.size(); ++i) dx[largest[i]] += dy[i];
            return std::vector<Values>{dx};
          }};
}

ReferenceOp ReferenceAvgPool(const ReferenceWindow& window) {
  const double scale = 1.0 / double(window.kernel * window.kernel);
  return {[window, scale](const std::vector<Tensor>& inputs) {
            const Tensor& x = inputs[0];
            Values y(At(OutputShape(window, x.shape(), x.width()).Count()), 0.0);
            ForPooled(window, x.shape(),
                      [&](size_t out, size_t in) { y[out] += scale * x.values[in]; });
            return y;
          },
          [window, scale](const std::vector<Tensor>& inputs, const Values& dy) {
            Values dx(inputs[0].values.size(), 0.0);
            ForPooled(window, inputs[0].shape(),
                      [&](size_t out, size_t in) { dx[in] += scale * dy[out]; });
            return std::vector<Values>{dx};
          }};
}

ReferenceOp ReferenceGlobalAvgPool() {
  // The index in y of element i of x.
  static constexpr auto kIndex = [](const Tensor& x, size_t i) {
    const size_t channels = At(x.width());
    return i / At(x.shape().Count(1)) * channels + i % channels;
  };
  return {[](const std::vector<Tensor>& inputs) {
            const Tensor& x = inputs[0];
            Values y(At(x.shape()[0] * x.width()), 0.0);
            for (size_t i = 0; i < x.values.size(); ++i) {
              y[kIndex(x, i)] += x.values[i] / double(x.shape().Count(1, -1));
            }
            return y;
          },
          [](const std::vector<Tensor>& inputs, const Values& dy) {
            const Tensor& x = inputs[0];
            Values dx(x.values.size());
            for (size_t i = 0; i < dx.size(); ++i) {
              dx[i] = dy[kIndex(x, i)] / double(x.shape().Count(1, -1));
            }
            return std::vector<Values>{dx};
          }};
}

ReferenceOp ReferenceToChannelsLast() {
  // The index in y (B, H, W, C) of element i of x (B, C, H, W).
  static constexpr auto kIndex = [](const Shape& x, size_t i) {
    const size_t positions = At(x[2] * x[3]), channels = At(x[1]);
    const size_t sample = i / (positions * channels), c = i / positions % channels;
    return (sample * positions + i % positions) * channels + c;
  };
  return {[](const std::vector<Tensor>& inputs) {
            Values y(inputs[0].values.size());
            for (size_t i = 0; i < y.size(); ++i) {
              y[kIndex(inputs[0].shape(), i)] = inputs[0].values[i];
            }
            return y;
          },
          [](const std::vector<Tensor>& inputs, const Values& dy) {
            Values dx(dy.size());
            for (size_t i = 0; i < dx.size(); ++i) dx[i] = dy[kIndex(inputs[0].shape(), i)];
            return std::vector<Values>{dx};
          }};
}

}  // namespace engine::test
