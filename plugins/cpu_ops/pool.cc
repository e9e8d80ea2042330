// max_pool, avg_pool: the largest or the mean of each window of a channels-last plane, (B, H, W, C)
// to (B, H', W', C). What is padded is no element of a window for the maximum and a zero for the
// mean, as in PyTorch. global_avg_pool: the mean over all positions, (B, ..., C) to (B, C), which
// are the one window of a plane of one row.
//
// Backward gathers: each input looks for the windows that it is in. So every gradient is written
// once, by one thread, in a fixed order.
#include <algorithm>
#include <cstring>
#include <span>

#include "conv_axis.h"
#include "cpu_op.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

struct PoolShape {
  Window window;
  int64_t height, width, channels;  // of the input
  int64_t output_height, output_width;
  float scale;  // of the sum over a window, for a mean
};

struct Span {
  int64_t begin, end;
};

// The taps of the window at `output` that are on the axis.
CPU_OPS_INLINE Span TapsAt(const Window& window, int64_t output, int64_t extent) noexcept {
  const int64_t origin = output * window.stride - window.padding;
  return {origin < 0 ? -origin : 0, std::min(window.kernel, extent - origin)};
}

// The windows that `input` is in.
CPU_OPS_INLINE Span WindowsAt(const Window& window, int64_t input, int64_t outputs) noexcept {
  const int64_t last = input + window.padding;
  const int64_t before = last - window.kernel + 1;
  return {before <= 0 ? 0 : (before + window.stride - 1) / window.stride,
          std::min(outputs, last / window.stride + 1)};
}

// Calls body(position, corner, taps in rows, taps in columns) for every window of output rows
// [begin, end), which are counted over all samples.
template <typename Body>
CPU_OPS_INLINE void ForWindows(const PoolShape& shape, int64_t begin, int64_t end,
                               const Body& body) noexcept {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t sample = row / shape.output_height, y = row % shape.output_height;
    const Span rows = TapsAt(shape.window, y, shape.height);
    for (int64_t x = 0; x < shape.output_width; ++x) {
      const int64_t corner =  // of the window; it may lie outside
          (sample * shape.height + y * shape.window.stride - shape.window.padding) * shape.width +
          x * shape.window.stride - shape.window.padding;
      body(row * shape.output_width + x, corner, rows, TapsAt(shape.window, x, shape.width));
    }
  }
}

// An input, and the rows and columns of windows that it is in.
struct InputWindows {
  int64_t sample, y, x;
  Span rows, columns;
};

// Calls body(position, windows) for every input of input rows [begin, end).
template <typename Body>
CPU_OPS_INLINE void ForInputs(const PoolShape& shape, int64_t begin, int64_t end,
                              const Body& body) noexcept {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t y = row % shape.height;
    const Span rows = WindowsAt(shape.window, y, shape.output_height);
    for (int64_t x = 0; x < shape.width; ++x) {
      body(row * shape.width + x, InputWindows{row / shape.height, y, x, rows,
                                               WindowsAt(shape.window, x, shape.output_width)});
    }
  }
}

// Calls body(window position, tap) for the windows of an input.
template <typename Body>
CPU_OPS_INLINE void ForWindowsOf(const PoolShape& shape, const InputWindows& input,
                                 const Body& body) noexcept {
  const Window& window = shape.window;
  for (int64_t i = input.rows.begin; i < input.rows.end; ++i) {
    const int64_t tap_row = input.y + window.padding - i * window.stride;
    for (int64_t j = input.columns.begin; j < input.columns.end; ++j) {
      const int64_t tap_column = input.x + window.padding - j * window.stride;
      body((input.sample * shape.output_height + i) * shape.output_width + j,
           tap_row * window.kernel + tap_column);
    }
  }
}

// Comparisons of whole vectors would be taken apart into lanes, as this is lowered before a kernel
// has its instruction set; loops over channels are not. So many channels at a time stay in the
// first-level cache.
constexpr int64_t kBlock = 64;

// The largest of each channel in a window so far, and its tap.
struct Largest {
  float value[kBlock];
  int32_t tap[kBlock];

  CPU_OPS_INLINE void Start(const float* x, int64_t count, int32_t number) noexcept {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      value[c] = x[c];
      tap[c] = number;
    }
  }

  // NaN is larger than anything and stays.
  CPU_OPS_INLINE void Add(const float* x, int64_t count, int32_t number) noexcept {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      const bool keep = (x[c] <= value[c]) | (value[c] != value[c]);
      value[c] = keep ? value[c] : x[c];
      tap[c] = keep ? tap[c] : number;
    }
  }

  CPU_OPS_INLINE void Write(float* y, uint8_t* taps, int64_t count) const noexcept {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) y[c] = value[c];
    if (taps == nullptr) return;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) taps[c] = static_cast<uint8_t>(tap[c]);
  }
};

// `taps`, unless null, becomes the number of the tap that was the largest; the first of equals.
CPU_OPS_KERNEL void MaxForward(const PoolShape& shape, const float* x, float* y, uint8_t* taps,
                               int64_t begin, int64_t end) {
  const int64_t channels = shape.channels, kernel = shape.window.kernel;
  ForWindows(shape, begin, end,
             [&](int64_t position, int64_t corner, Span rows, Span columns) CPU_OPS_INLINE_LAMBDA {
               for (int64_t c = 0; c < channels; c += kBlock) {
                 const int64_t count = std::min(kBlock, channels - c);
                 const auto at = [&](int64_t i, int64_t j) CPU_OPS_INLINE_LAMBDA {
                   return x + (corner + i * shape.width + j) * channels + c;
                 };
                 Largest largest;
                 largest.Start(at(rows.begin, columns.begin), count,
                               static_cast<int32_t>(rows.begin * kernel + columns.begin));
                 for (int64_t i = rows.begin; i < rows.end; ++i) {
                   for (int64_t j = columns.begin; j < columns.end; ++j) {
                     largest.Add(at(i, j), count, static_cast<int32_t>(i * kernel + j));
                   }
                 }
                 const int64_t target = position * channels + c;
                 largest.Write(y + target, taps == nullptr ? nullptr : taps + target, count);
               }
             });
}

CPU_OPS_KERNEL void MaxBackward(const PoolShape& shape, const float* dy, const uint8_t* taps,
                                float* dx, bool sum, int64_t begin, int64_t end) {
  const int64_t channels = shape.channels;
  ForInputs(shape, begin, end,
            [&](int64_t position, const InputWindows& input) CPU_OPS_INLINE_LAMBDA {
              float* gradient = dx + position * channels;
              if (!sum) std::memset(gradient, 0, static_cast<size_t>(channels) * sizeof(float));
              ForWindowsOf(shape, input, [&](int64_t window, int64_t number) CPU_OPS_INLINE_LAMBDA {
                const auto tap = static_cast<uint8_t>(number);
                const float* g = dy + window * channels;
                const uint8_t* chosen = taps + window * channels;
#pragma omp simd
                for (int64_t c = 0; c < channels; ++c)
                  gradient[c] += chosen[c] == tap ? g[c] : 0.0f;
              });
            });
}

CPU_OPS_KERNEL void AvgForward(const PoolShape& shape, const float* x, float* y, int64_t begin,
                               int64_t end) {
  const int64_t channels = shape.channels;
  ForWindows(shape, begin, end,
             [&](int64_t position, int64_t corner, Span rows, Span columns) CPU_OPS_INLINE_LAMBDA {
               for (int64_t c = 0; c < channels; c += kLanes) {
                 const int64_t lanes = LanesAt(c, channels);
                 Float16 sum = {};
                 for (int64_t i = rows.begin; i < rows.end; ++i) {
                   for (int64_t j = columns.begin; j < columns.end; ++j) {
                     sum += Load(x + (corner + i * shape.width + j) * channels + c, lanes);
                   }
                 }
                 Store(y + position * channels + c, sum * shape.scale, lanes);
               }
             });
}

CPU_OPS_KERNEL void AvgBackward(const PoolShape& shape, const float* dy, float* dx, bool sum,
                                int64_t begin, int64_t end) {
  const int64_t channels = shape.channels;
  ForInputs(shape, begin, end,
            [&](int64_t position, const InputWindows& input) CPU_OPS_INLINE_LAMBDA {
              for (int64_t c = 0; c < channels; c += kLanes) {
                const int64_t lanes = LanesAt(c, channels);
                Float16 gradient = {};
                ForWindowsOf(shape, input, [&](int64_t window, int64_t) CPU_OPS_INLINE_LAMBDA {
                  gradient += Load(dy + window * channels + c, lanes);
                });
                gradient *= shape.scale;
                float* target = dx + position * channels + c;
                if (sum) gradient += Load(target, lanes);
                Store(target, gradient, lanes);
              }
            });
}

enum class Kind { kMax, kAverage, kGlobalAverage };

template <Kind kKind>
class PoolOp final : public CpuOp {
 public:
  PoolOp(const OpContext& context, const Options& attributes) noexcept : CpuOp(context) {
    if constexpr (kKind != Kind::kGlobalAverage) shape_.window = kit::PoolWindow(attributes);
  }

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    if constexpr (kKind == Kind::kGlobalAverage) {
      ENGINE_RETURN_IF_ERROR(kit::InferGlobalAvgPool(inference));
      const Shape& x = inputs[0].shape;
      const int64_t positions = x.Count(1, -1);
      shape_ = {
          {.kernel = positions}, 1, positions, x[-1], 1, 1, 1.0f / static_cast<float>(positions)};
      return {};
    }
    ENGINE_RETURN_IF_ERROR(kit::InferPool(inference, shape_.window));
    const Shape &x = inputs[0].shape, &y = signature->outputs[0].shape;
    const int64_t taps = shape_.window.kernel * shape_.window.kernel;
    shape_ = {shape_.window, x[1], x[2], x[3], y[1], y[2], 1.0f / static_cast<float>(taps)};
    if (kKind == Kind::kMax) signature->saved_bytes = y.Count();  // a tap each
    return {};
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    const float* x = call.inputs[0].f32();
    float* y = call.outputs[0].f32();
    const int64_t rows_of_window = std::min(shape_.window.kernel, shape_.height);
    ForRows(call.inputs[0].shape[0] * shape_.output_height,
            rows_of_window * shape_.width * shape_.channels, [&](int64_t begin, int64_t end) {
              if constexpr (kKind == Kind::kMax) {
                MaxForward(shape_, x, y, static_cast<uint8_t*>(call.saved), begin, end);
              } else {
                AvgForward(shape_, x, y, begin, end);
              }
            });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const float* dy = call.output_grads[0].f32();
    float* dx = call.input_grads[0].f32();
    const bool sum = Accumulates(call, 0);
    ForRows(call.inputs[0].shape[0] * shape_.height, shape_.width * shape_.channels,
            [&](int64_t begin, int64_t end) {
              if constexpr (kKind == Kind::kMax) {
                const auto* taps = static_cast<const uint8_t*>(call.saved);
                MaxBackward(shape_, dy, taps, dx, sum, begin, end);
              } else {
                AvgBackward(shape_, dy, dx, sum, begin, end);
              }
            });
    return {};
  }

 private:
  PoolShape shape_ = {};
};

}  // namespace

const OpFactory kMakeMaxPool = kit::NewOp<PoolOp<Kind::kMax>>;
const OpFactory kMakeAvgPool = kit::NewOp<PoolOp<Kind::kAverage>>;
const OpFactory kMakeGlobalAvgPool = kit::NewOp<PoolOp<Kind::kGlobalAverage>>;

}  // namespace engine::cpu_ops
