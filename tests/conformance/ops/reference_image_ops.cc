// The ops of convolution nets.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>

#include "tests/conformance/ops/reference_ops.h"

namespace engine::test {
namespace {

struct WindowAxis {
  int64_t kernel, stride, before, after, dilation;

  int64_t Reach() const { return (kernel - 1) * dilation + 1; }
  // Windows that fit; with `ceil` one more where there is a rest, unless all of it is padding.
  int64_t Positions(int64_t extent, bool ceil) const {
    const double steps = double(extent + before + after - Reach()) / double(stride);
    const auto positions = static_cast<int64_t>(ceil ? std::ceil(steps) : std::floor(steps)) + 1;
    return ceil && (positions - 1) * stride >= extent + before ? positions - 1 : positions;
  }
};

struct Window {
  WindowAxis rows, columns;
  bool ceil = false;

  Window(const Options& attributes, bool dilates) {
    const auto kernel = attributes.Ints("kernel"), stride = attributes.Ints("stride"),
               padding = attributes.Ints("padding");
    for (const bool row : {true, false}) {
      const auto of = [row](std::span<const int64_t> list) {
        return row ? list.front() : list.back();
      };
      WindowAxis& axis = row ? rows : columns;
      axis = {of(kernel), of(stride), padding.front(), padding.back(), 1};
      if (dilates) axis.dilation = of(attributes.Ints("dilation"));
      if (padding.size() == 2) axis.before = axis.after = of(padding);
      if (padding.size() == 4) axis.before = padding[row ? 0 : 1];
      if (padding.size() == 4) axis.after = padding[row ? 2 : 3];
      if (axis.stride == 0) axis.stride = axis.kernel;
      if (axis.before < 0) axis.before = axis.kernel / 2 * axis.dilation;
      if (axis.after < 0) axis.after = axis.kernel / 2 * axis.dilation;
    }
  }
  Shape Output(const Shape& x, int64_t channels) const {
    return {x[0], rows.Positions(x[1], ceil), columns.Positions(x[2], ceil), channels};
  }
};

// Calls body(first of the pixel in the output, first of that in the input, tap) for each output
// position and each tap of its window that meets the input.
template <typename Body>
void ForTaps(const Window& window, const Shape& in, const Shape& out, const Body& body) {
  const int64_t taps = window.rows.kernel * window.columns.kernel;
  for (int64_t position = 0; position < out.Count(0, 3); ++position) {
    const int64_t w = position % out[2], h = position / out[2] % out[1],
                  b = position / out.Count(1, 3);
    for (int64_t tap = 0; tap < taps; ++tap) {
      const auto place = [](const WindowAxis& axis, int64_t i, int64_t t) {
        return i * axis.stride + t * axis.dilation - axis.before;
      };
      const int64_t y = place(window.rows, h, tap / window.columns.kernel);
      const int64_t x = place(window.columns, w, tap % window.columns.kernel);
      const bool inside = 0 <= y && y < in[1] && 0 <= x && x < in[2];
      if (!inside) continue;
      body(At(position * out[3]), At(((b * in[1] + y) * in[2] + x) * in[3]), At(tap));
    }
  }
}

// Calls body(input, output, place of its weight), of channels, for what a group has of a tap.
template <typename Body>
void ForWeights(size_t inputs, size_t outputs, size_t groups, const Body& body) {
  const size_t own = inputs / groups, of_group = outputs / groups;
  for (size_t at = 0; at < inputs; ++at) {
    for (size_t o = 0; o < of_group; ++o) body(at, at / own * of_group + o, at % own);
  }
}

// How many places of an axis a window counts: those of the axis, or of the axis with its padding.
double CountOn(const WindowAxis& axis, int64_t position, int64_t extent, bool padding) {
  double count = 0;
  for (int64_t tap = 0; tap < axis.kernel; ++tap) {
    const int64_t place = position * axis.stride + tap - axis.before;
    const bool inside = 0 <= place && place < extent;
    count += inside || (padding && place < extent + axis.after) ? 1 : 0;
  }
  return count;
}

}  // namespace

Values ReferenceConv2d(Inputs inputs, const Options& attributes) {
  const Window window(attributes, true);
  const Shape& x = inputs[0].shape();
  const size_t channels = At(x[3]), units = At(attributes.Int("channels"));
  const size_t groups = At(attributes.Int("groups")),
               taps = inputs[1].values.size() * groups / (channels * units);
  const bool oihw = attributes.String("layout") == "oihw";
  const Shape y = window.Output(x, int64_t(units));
  Values out(At(y.Count()));
  for (size_t i = 0; inputs.size() > 2 && i < out.size(); ++i) out[i] = inputs[2].values[i % units];
  const size_t own = channels / groups;
  ForTaps(window, x, y, [&](size_t to, size_t from, size_t tap) {
    ForWeights(channels, units, groups, [&](size_t c, size_t o, size_t row) {
      const size_t at = oihw ? (o * own + row) * taps + tap : (tap * own + row) * units + o;
      out[to + o] += inputs[0].values[from + c] * inputs[1].values[at];
    });
  });
  return out;
}

// Scatters what a convolution from y to x gathers.
Values ReferenceConvTranspose2d(Inputs inputs, const Options& attributes) {
  const Window window(attributes, true);
  const Shape& x = inputs[0].shape();
  const size_t channels = At(x[3]), units = At(attributes.Int("channels"));
  const size_t groups = At(attributes.Int("groups")), own = units / groups;
  const size_t taps = inputs[1].values.size() / (channels * own);
  const auto more = attributes.Ints("output_padding");
  const auto extent = [](const WindowAxis& axis, int64_t positions, int64_t extra) {
    return (positions - 1) * axis.stride + axis.Reach() - axis.before - axis.after + extra;
  };
  const Shape y = {x[0], extent(window.rows, x[1], more.front()),
                   extent(window.columns, x[2], more.back()), int64_t(units)};
  Values out(At(y.Count()));
  for (size_t i = 0; inputs.size() > 2 && i < out.size(); ++i) out[i] = inputs[2].values[i % units];
  ForTaps(window, y, x, [&](size_t from, size_t to, size_t tap) {
    ForWeights(units, channels, groups, [&](size_t o, size_t c, size_t row) {
      out[to + o] += inputs[0].values[from + c] * inputs[1].values[(c * own + row) * taps + tap];
    });
  });
  return out;
}

Values ReferenceMaxPool(Inputs inputs, const Options& attributes) {
  Window window(attributes, true);
  window.ceil = attributes.Bool("ceil");
  const Shape &x = inputs[0].shape(), y = window.Output(x, x[3]);
  Values out(At(y.Count()), -std::numeric_limits<double>::infinity());
  ForTaps(window, x, y, [&](size_t to, size_t from, size_t) {
    for (size_t c = 0; c < At(x[3]); ++c) {
      out[to + c] = std::max(out[to + c], inputs[0].values[from + c]);
    }
  });
  return out;
}

Values ReferenceAvgPool(Inputs inputs, const Options& attributes) {
  Window window(attributes, false);
  window.ceil = attributes.Bool("ceil");
  const bool padding = attributes.Bool("count_padding");
  const Shape &x = inputs[0].shape(), y = window.Output(x, x[3]);
  Values out(At(y.Count()));
  ForTaps(window, x, y, [&](size_t to, size_t from, size_t) {
    const int64_t position = int64_t(to) / y[3];
    const double count = CountOn(window.rows, position / y[2] % y[1], x[1], padding) *
                         CountOn(window.columns, position % y[2], x[2], padding);
    for (size_t c = 0; c < At(x[3]); ++c) out[to + c] += inputs[0].values[from + c] / count;
  });
  return out;
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

Values ReferenceGlobalMaxPool(Inputs inputs, const Options&) {
  const Shape& x = inputs[0].shape();
  const size_t channels = At(x[-1]), sample = At(x.Count(1));
  Values y(At(x[0]) * channels, -std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < inputs[0].values.size(); ++i) {
    double& largest = y[i / sample * channels + i % channels];
    largest = std::max(largest, inputs[0].values[i]);
  }
  return y;
}

// Each input has, along an axis, the share that it loses with its distance from the output's place.
Values ReferenceResize(Inputs inputs, const Options& attributes) {
  const std::string_view mode = attributes.String("mode"), to = attributes.String("coordinates");
  const auto size = attributes.Ints("size");
  const Shape& x = inputs[0].shape();
  Shape y = x;
  for (const int axis : {1, 2}) {
    y[axis] = size.empty() ? static_cast<int64_t>(double(x[axis]) * attributes.Float("scale"))
              : axis == 1  ? size.front()
                           : size.back();
  }
  const auto share = [&](int axis, int64_t output, int64_t input) {
    const double ratio =
        size.empty() ? 1 / attributes.Float("scale") : double(x[axis]) / double(y[axis]);
    double place = (double(output) + 0.5) * ratio - 0.5;
    if (to == "asymmetric") place = double(output) * ratio;
    if (to == "align_corners") {
      place = y[axis] > 1 ? double(output * (x[axis] - 1)) / double(y[axis] - 1) : 0;
    }
    place = std::clamp(place, 0.0, double(x[axis] - 1));
    if (mode == "nearest") place = to == "asymmetric" ? std::floor(place) : std::ceil(place - 0.5);
    return std::max(0.0, 1 - std::abs(place - double(input)));
  };
  Values out(At(y.Count()));
  for (int64_t i = 0; i < y.Count(); ++i) {
    const int64_t c = i % y[3], w = i / y[3] % y[2], h = i / y.Count(2) % y[1], b = i / y.Count(1);
    for (int64_t from = 0; from < x.Count(1, 3); ++from) {
      out[At(i)] += share(1, h, from / x[2]) * share(2, w, from % x[2]) *
                    inputs[0].values[At((b * x.Count(1, 3) + from) * x[3] + c)];
    }
  }
  return out;
}

Values ReferenceGroupNorm(Inputs inputs, const Options& attributes) {
  const Shape& x = inputs[0].shape();
  const size_t channels = At(x[-1]), groups = At(attributes.Int("groups")), sample = At(x.Count(1));
  const double count = double(sample / groups);
  const auto group_of = [&](size_t i) {
    return i / sample * groups + i % channels / (channels / groups);
  };
  Values y = inputs[0].values, mean(At(x[0]) * groups), variance(mean);
  for (size_t i = 0; i < y.size(); ++i) mean[group_of(i)] += y[i] / count;
  for (size_t i = 0; i < y.size(); ++i) {
    variance[group_of(i)] += std::pow(y[i] - mean[group_of(i)], 2) / count;
  }
  for (size_t i = 0; i < y.size(); ++i) {
    const double deviation = std::sqrt(variance[group_of(i)] + attributes.Float("epsilon"));
    y[i] = (y[i] - mean[group_of(i)]) / deviation * inputs[1].values[i % channels] +
           inputs[2].values[i % channels];
  }
  return y;
}

// From (B, C, ...) to (B, ..., C).
Values ReferenceToChannelsLast(Inputs inputs, const Options&) {
  const Shape& x = inputs[0].shape();
  const size_t channels = At(x[1]), positions = At(x.Count(2));
  Values y(inputs[0].values.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t sample = i / (positions * channels), c = i / positions % channels;
    y[(sample * positions + i % positions) * channels + c] = inputs[0].values[i];
  }
  return y;
}

// The same permutation of (B, positions, C), which has C as its positions.
Values ReferenceToChannelsFirst(Inputs inputs, const Options& attributes) {
  Tensor x = inputs[0];
  x.spec.shape = {x.shape()[0], x.shape().Count(1, 3), x.shape()[3]};
  return ReferenceToChannelsLast({x}, attributes);
}

}  // namespace engine::test
