// The ops of convolution nets.
#include <limits>

#include "tests/conformance/ops/reference_ops.h"

namespace engine::test {
namespace {

struct Window {
  int64_t kernel, stride, padding;

  explicit Window(const Options& attributes)
      : kernel(attributes.Int("kernel")),
        stride(attributes.Int("stride")),
        padding(attributes.Int("padding")) {
    if (stride == 0) stride = kernel;
    if (padding < 0) padding = kernel / 2;
  }
  Shape Output(const Shape& x, int64_t channels) const {
    const auto positions = [&](int64_t extent) {
      return (extent + 2 * padding - kernel) / stride + 1;
    };
    return {x[0], positions(x[1]), positions(x[2]), channels};
  }
};

// Calls body(first of the pixel in the output, first of that in the input, tap) for each output
// position and each tap of its window that meets the input.
template <typename Body>
void ForTaps(const Window& window, const Shape& in, const Shape& out, const Body& body) {
  const int64_t taps = window.kernel * window.kernel;
  for (int64_t position = 0; position < out.Count(0, 3); ++position) {
    const int64_t w = position % out[2], h = position / out[2] % out[1],
                  b = position / out.Count(1, 3);
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t y = h * window.stride + tap / window.kernel - window.padding;
      const int64_t x = w * window.stride + tap % window.kernel - window.padding;
      const bool inside = 0 <= y && y < in[1] && 0 <= x && x < in[2];
      if (!inside) continue;
      body(At(position * out[3]), At(((b * in[1] + y) * in[2] + x) * in[3]), At(tap));
    }
  }
}

// Folds what a pool's windows hold into outputs that begin as `start`.
template <typename Fold>
Values Pool(Inputs inputs, const Window& window, double start, Fold fold) {
  const Shape &x = inputs[0].shape(), y = window.Output(x, x[3]);
  Values out(At(y.Count()), start);
  ForTaps(window, x, y, [&](size_t to, size_t from, size_t) {
    for (size_t c = 0; c < At(x[3]); ++c) {
      out[to + c] = fold(out[to + c], inputs[0].values[from + c]);
    }
  });
  return out;
}

}  // namespace

Values ReferenceConv2d(Inputs inputs, const Options& attributes) {
  const Window window(attributes);
  const Shape& x = inputs[0].shape();
  const size_t channels = At(x[3]), units = At(inputs[1].width());
  const Shape y = window.Output(x, inputs[1].width());
  Values out(At(y.Count()));
  for (size_t i = 0; inputs.size() > 2 && i < out.size(); ++i) out[i] = inputs[2].values[i % units];
  ForTaps(window, x, y, [&](size_t to, size_t from, size_t tap) {
    for (size_t c = 0; c < channels; ++c) {
      const double* const weight = &inputs[1].values[(tap * channels + c) * units];
      for (size_t o = 0; o < units; ++o) out[to + o] += inputs[0].values[from + c] * weight[o];
    }
  });
  return out;
}

Values ReferenceMaxPool(Inputs inputs, const Options& attributes) {
  return Pool(inputs, Window(attributes), -std::numeric_limits<double>::infinity(),
              [](double a, double b) { return b > a ? b : a; });
}

Values ReferenceAvgPool(Inputs inputs, const Options& attributes) {
  const Window window(attributes);
  const double count = static_cast<double>(window.kernel * window.kernel);
  return Pool(inputs, window, 0, [count](double a, double b) { return a + b / count; });
}

Values ReferenceGlobalAvgPool(Inputs inputs, const Options&) {
  const Shape& x = inputs[0].shape();
  const size_t channels = At(x[-1]), sample = At(x.Count(1));
  Values y(At(x[0]) * channels);
  for (size_t i = 0; i < inputs[0].values.size(); ++i) {
    y[i / sample * channels + i % channels] += inputs[0].values[i] / double(x.Count(1, -1));
  }
  return y;
}

// From (B, C, H, W) to (B, H, W, C).
Values ReferenceToChannelsLast(Inputs inputs, const Options&) {
  const Shape& x = inputs[0].shape();
  const size_t positions = At(x[2] * x[3]), channels = At(x[1]);
  Values y(inputs[0].values.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t sample = i / (positions * channels), c = i / positions % channels;
    y[(sample * positions + i % positions) * channels + c] = inputs[0].values[i];
  }
  return y;
}

}  // namespace engine::test
