// max_pool: the largest of each window of a channels-last plane, (B, H, W, C) to (B, H', W', C). What
// is padded is no element of a window. global_max_pool: that of all positions, (B, ..., C) to (B,
// C), which are the one window of a plane of one row.
//
// Backward gathers: each input looks for the windows that it is in. So every gradient is written
// once, by one thread, in a fixed order.
#include <algorithm>
#include <limits>

#include "cpu_op.h"
#include "kit/image_op_shapes.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

using kit::Window;
using Tap = uint16_t;
constexpr int64_t kMostTaps = int64_t{std::numeric_limits<Tap>::max()} + 1;

struct PoolShape {
  kit::PlaneWindow window;
  int64_t height, width, channels;  // of the input
  int64_t output_height, output_width;
};

// The windows that reach over `input`.
CPU_OPS_INLINE Window::Range WindowsAt(const Window& window, int64_t input,
                                       int64_t outputs) noexcept {
  const int64_t last = input + window.before;
  const int64_t before = last - window.Reach() + 1;
  return {before <= 0 ? 0 : (before + window.stride - 1) / window.stride,
          std::min(outputs, last / window.stride + 1)};
}

// Through which tap the window at `output` has `input` that it reaches over; -1: through none.
CPU_OPS_INLINE int64_t TapOf(const Window& window, int64_t output, int64_t input) noexcept {
  const int64_t offset = input + window.before - output * window.stride;
  if (window.dilation == 1) return offset;
  return offset % window.dilation == 0 ? offset / window.dilation : -1;
}

// Comparisons of whole vectors would be taken apart into lanes, as this is lowered before a kernel
// has its instruction set; loops over channels are not. So many channels at a time stay in the
// first-level cache.
constexpr int64_t kBlock = 64;

// The largest of each channel in a window so far, and its tap.
struct Largest {
  float value[kBlock];
  int32_t tap[kBlock];

  template <typename T>
  CPU_OPS_INLINE void Start(const T* x, int64_t count, int32_t number) noexcept {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      value[c] = x[c];
      tap[c] = number;
    }
  }

  // NaN is larger than anything and stays.
  template <typename T>
  CPU_OPS_INLINE void Add(const T* x, int64_t count, int32_t number) noexcept {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      const float other = x[c];
      const bool keep = (other <= value[c]) | (value[c] != value[c]);
      value[c] = keep ? value[c] : other;
      tap[c] = keep ? tap[c] : number;
    }
  }

  template <typename T>
  CPU_OPS_INLINE void Write(T* y, Tap* taps, int64_t count) const noexcept {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) y[c] = value[c];
    if (taps == nullptr) return;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) taps[c] = static_cast<Tap>(tap[c]);
  }
};

// The largest of `count` <= kBlock channels of the window at row `y` and column `x` of the output; of
// equals the first.
template <typename T>
CPU_OPS_INLINE Largest LargestOf(const PoolShape& shape, const T* plane, int64_t y, int64_t x,
                                 int64_t count) noexcept {
  const Window &rows = shape.window.rows, &columns = shape.window.columns;
  const Window::Range row_taps = rows.Taps(y, shape.height);
  const Window::Range column_taps = columns.Taps(x, shape.width);
  Largest largest;
  bool started = false;
  for (int64_t i = row_taps.begin; i < row_taps.end; ++i) {
    const T* row = plane + rows.InputOf(y, i) * shape.width * shape.channels;
    for (int64_t j = column_taps.begin; j < column_taps.end; ++j) {
      const T* at = row + columns.InputOf(x, j) * shape.channels;
      const auto tap = static_cast<int32_t>(i * columns.kernel + j);
      if (started) largest.Add(at, count, tap);
      if (!started) largest.Start(at, count, tap);
      started = true;
    }
  }
  return largest;
}

// Output rows [begin, end), which are counted over all samples. `taps`, unless null, becomes the
// number of the tap that was the largest.
template <typename T>
CPU_OPS_KERNEL void MaxForward(const PoolShape& shape, const T* x, T* y, Tap* taps, int64_t begin,
                               int64_t end) {
  for (int64_t position = begin * shape.output_width; position < end * shape.output_width;
       ++position) {
    const int64_t row = position / shape.output_width, column = position % shape.output_width;
    const T* plane = x + row / shape.output_height * shape.height * shape.width * shape.channels;
    for (int64_t c = 0; c < shape.channels; c += kBlock) {
      const int64_t count = std::min(kBlock, shape.channels - c);
      const int64_t target = position * shape.channels + c;
      LargestOf(shape, plane + c, row % shape.output_height, column, count)
          .Write(y + target, taps == nullptr ? nullptr : taps + target, count);
    }
  }
}

// Of channels whose window has chosen `tap`.
template <typename T>
CPU_OPS_INLINE void AddChosen(const T* dy, const Tap* chosen, Tap tap, int64_t count,
                              float* gradient) {
#pragma omp simd
  for (int64_t c = 0; c < count; ++c) {
    const float arriving = dy[c];
    gradient[c] += chosen[c] == tap ? arriving : 0.0f;
  }
}

// Input rows [begin, end), which are counted over all samples.
template <typename T>
CPU_OPS_KERNEL void MaxBackward(const PoolShape& shape, const T* dy, const Tap* taps, T* dx,
                                bool sum, int64_t begin, int64_t end) {
  const Window &rows = shape.window.rows, &columns = shape.window.columns;
  const int64_t channels = shape.channels;
  for (int64_t position = begin * shape.width; position < end * shape.width; ++position) {
    const int64_t row = position / shape.width, column = position % shape.width;
    const int64_t sample = row / shape.height, h = row % shape.height;
    const Window::Range over_row = WindowsAt(rows, h, shape.output_height);
    const Window::Range over_column = WindowsAt(columns, column, shape.output_width);
    T* target = dx + position * channels;
    for (int64_t begin_c = 0; begin_c < channels; begin_c += kBlock) {
      const int64_t count = std::min(kBlock, channels - begin_c);
      float gradient[kBlock];  // of overlapping windows: rounded once
      for (int64_t c = 0; c < count; ++c) {
        const float before = target[begin_c + c];
        gradient[c] = sum ? before : 0.0f;
      }
      for (int64_t i = over_row.begin; i < over_row.end; ++i) {
        const int64_t row_tap = TapOf(rows, i, h);
        for (int64_t j = over_column.begin; j < over_column.end && row_tap >= 0; ++j) {
          const int64_t column_tap = TapOf(columns, j, column);
          if (column_tap < 0) continue;
          const auto tap = static_cast<Tap>(row_tap * columns.kernel + column_tap);
          const int64_t at =
              ((sample * shape.output_height + i) * shape.output_width + j) * channels + begin_c;
          AddChosen(dy + at, taps + at, tap, count, gradient);
        }
      }
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) target[begin_c + c] = gradient[c];
    }
  }
}

template <bool kGlobal>
class MaxPoolOp final : public CpuOp {
 public:
  MaxPoolOp(const OpContext& context, const Options& attributes) noexcept : CpuOp(context) {
    if constexpr (!kGlobal) given_ = kit::PoolAttributes(attributes, true);
  }

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    ENGINE_RETURN_IF_ERROR(kGlobal ? kit::InferGlobalPool(inference)
                                   : kit::InferPool(inference, given_));
    const Shape &x = inputs[0].shape, &y = signature->outputs[0].shape;
    const int64_t positions = x.Count(1, -1);
    shape_ = kGlobal ? PoolShape{kit::PlaneWindow(positions), 1, positions, x[-1], 1, 1}
                     : PoolShape{given_.window, x[1], x[2], x[3], y[1], y[2]};
    if (shape_.window.taps() > kMostTaps) {
      return inference.InputError(0, "a window of at most 65536 positions");
    }
    signature->saved_bytes = y.Count() * static_cast<int64_t>(sizeof(Tap));
    return {};
  }
  bool TakesBFloat16() const noexcept override { return true; }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    const int64_t rows_of_window = std::min(shape_.window.rows.kernel, shape_.height);
    WithElement(activation(), [&]<typename T>(T) {
      ForRows(call.inputs[0].shape[0] * shape_.output_height,
              rows_of_window * shape_.width * shape_.channels, [&](int64_t begin, int64_t end) {
                MaxForward(shape_, As<const T>(call.inputs[0]), As<T>(call.outputs[0]),
                           static_cast<Tap*>(call.saved), begin, end);
              });
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    WithElement(activation(), [&]<typename T>(T) {
      ForRows(call.inputs[0].shape[0] * shape_.height, shape_.width * shape_.channels,
              [&](int64_t begin, int64_t end) {
                MaxBackward(shape_, As<const T>(call.output_grads[0]),
                            static_cast<const Tap*>(call.saved), As<T>(call.input_grads[0]),
                            Accumulates(call, 0), begin, end);
              });
    });
    return {};
  }

  kit::PoolAttributes given_;
  PoolShape shape_ = {};
};

}  // namespace

const OpFactory kMakeMaxPool = kit::NewOp<MaxPoolOp<false>>;
const OpFactory kMakeGlobalMaxPool = kit::NewOp<MaxPoolOp<true>>;

}  // namespace engine::cpu_ops
