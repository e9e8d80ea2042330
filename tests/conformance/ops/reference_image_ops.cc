// The ops of convolution nets.
#include "tests/conformance/ops/reference_terms.h"

namespace engine::test {
namespace {

// The index of (b, h, w, c) in a tensor (B, H, W, C).
size_t Pixel(const Shape& shape, int64_t b, int64_t h, int64_t w, int64_t c) {
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

// Calls body(index in y, index in x) for every element of every window of a pool.
template <typename Body>
void ForPooled(const ReferenceWindow& window, const Shape& x, const Body& body) {
  const Shape y = OutputShape(window, x, x[3]);
  ForTaps(window, x,
          [&](int64_t b, int64_t h, int64_t w, int64_t, int64_t, int64_t yy, int64_t xx) {
            for (int64_t c = 0; c < x[3]; ++c) body(Pixel(y, b, h, w, c), Pixel(x, b, yy, xx, c));
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
  const auto shape = [window](const std::vector<Tensor>& inputs) {
    return OutputShape(window, inputs[0].shape(), inputs[1].width());
  };
  return SumOfTerms(shape, [=](const std::vector<Tensor>& inputs, auto terms) {
    const Shape &x = inputs[0].shape(), &weight = inputs[1].shape(), y = shape(inputs);
    for (size_t i = 0; inputs.size() > 2 && i < At(y.Count()); ++i) {
      terms.Add(2, i % At(y[3]), i);
    }
    ForTaps(window, x,
            [&](int64_t b, int64_t h, int64_t w, int64_t i, int64_t j, int64_t yy, int64_t xx) {
              for (int64_t c = 0; c < x[3]; ++c) {
                for (int64_t o = 0; o < y[3]; ++o) {
                  terms.Multiply(Pixel(x, b, yy, xx, c), Pixel(weight, i, j, c, o),
                                 Pixel(y, b, h, w, o));
                }
              }
            });
  });
}

ReferenceOp ReferenceMaxPool(const ReferenceWindow& window) {
  const auto shape = [window](const std::vector<Tensor>& inputs) {
    return OutputShape(window, inputs[0].shape(), inputs[0].width());
  };
  return SumOfTerms(shape, [window](const std::vector<Tensor>& inputs, auto terms) {
    const std::vector<size_t> largest = Largest(window, inputs[0]);
    for (size_t i = 0; i < largest.size(); ++i) terms.Add(0, largest[i], i);
  });
}

ReferenceOp ReferenceAvgPool(const ReferenceWindow& window) {
  const auto shape = [window](const std::vector<Tensor>& inputs) {
    return OutputShape(window, inputs[0].shape(), inputs[0].width());
  };
  return SumOfTerms(shape, [window](const std::vector<Tensor>& inputs, auto terms) {
    ForPooled(window, inputs[0].shape(), [&](size_t y, size_t x) {
      terms.Add(0, x, y, 1.0 / double(window.kernel * window.kernel));
    });
  });
}

ReferenceOp ReferenceGlobalAvgPool() {
  const auto shape = [](const std::vector<Tensor>& inputs) {
    return Shape{inputs[0].shape()[0], inputs[0].width()};
  };
  return SumOfTerms(shape, [](const std::vector<Tensor>& inputs, auto terms) {
    const Shape& x = inputs[0].shape();
    const size_t channels = At(x[-1]), sample = At(x.Count(1));
    for (size_t i = 0; i < inputs[0].values.size(); ++i) {
      terms.Add(0, i, i / sample * channels + i % channels, 1.0 / double(x.Count(1, -1)));
    }
  });
}

// From (B, C, H, W) to (B, H, W, C).
ReferenceOp ReferenceToChannelsLast() {
  return SumOfTerms(LikeInput, [](const std::vector<Tensor>& inputs, auto terms) {
    const Shape& x = inputs[0].shape();
    const size_t positions = At(x[2] * x[3]), channels = At(x[1]);
    for (size_t i = 0; i < inputs[0].values.size(); ++i) {
      const size_t sample = i / (positions * channels), c = i / positions % channels;
      terms.Add(0, i, (sample * positions + i % positions) * channels + c);
    }
  });
}

}  // namespace engine::test
