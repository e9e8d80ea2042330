// softmax: y = e^x / sum(e^x), log_softmax: y = x - ln(sum(e^x)), along any axis.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu_op.h"
#include "kit/array_op_shapes.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::infinity();

// Where a row has no number but -infinity there is nothing to subtract.
CPU_OPS_INLINE float Origin(float largest) noexcept {
  return largest == kLeast ? 0.0f : largest;
}

// Three passes over a row, which is in the first-level cache after the first one. Lanes behind its
// end are -infinity, of which the exponential is 0.
// Rows [begin, end) of `width` numbers. y may be x.
template <typename V>
CPU_OPS_INLINE void SoftmaxRows(const float* x, float* y, int64_t width, bool log, int64_t begin,
                                int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* const from = x + row * width;
    float* const to = y + row * width;
    V largest_lanes = V{} + kLeast;
    for (int64_t i = 0; i < width; i += kWidth<V>) {
      largest_lanes = Larger(largest_lanes, LoadAs<V>(from + i, LanesAt<V>(i, width), kLeast));
    }
    const float largest = Origin(Largest(largest_lanes));
    V sums = {};
    for (int64_t i = 0; i < width; i += kWidth<V>) {
      const int64_t lanes = LanesAt<V>(i, width);
      const V e = Exp(LoadAs<V>(from + i, lanes, kLeast) - largest);
      sums += e;
      if (!log) StoreAs(to + i, e, lanes);
    }
    const float sum = Sum(sums);
    const float inverse = 1.0f / sum, log_sum = largest + std::log(sum);
    if (log) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) to[i] = from[i] - log_sum;
    } else {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) to[i] *= inverse;
    }
  }
}

// dx = y (dy - sum(y dy)), or dy - e^y sum(dy) of the logarithm.
template <typename V>
CPU_OPS_INLINE void SoftmaxGradientRows(const float* y, const float* dy, float* dx, bool sum,
                                        int64_t width, bool log, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* const p = y + row * width;
    const float* const g = dy + row * width;
    float* const to = dx + row * width;
    V dots = {};
    for (int64_t i = 0; i < width; i += kWidth<V>) {
      const int64_t lanes = LanesAt<V>(i, width);
      dots += log ? LoadAs<V>(g + i, lanes) : LoadAs<V>(p + i, lanes) * LoadAs<V>(g + i, lanes);
    }
    const float dot = Sum(dots);
    for (int64_t i = 0; i < width; i += kWidth<V>) {
      const int64_t lanes = LanesAt<V>(i, width);
      const V own = LoadAs<V>(g + i, lanes), probability = LoadAs<V>(p + i, lanes);
      V gradient = log ? own - Exp(probability) * dot : probability * (own - dot);
      if (sum) gradient += LoadAs<V>(to + i, lanes);
      StoreAs(to + i, gradient, lanes);
    }
  }
}

// Where the axis is not the last one: columns that lie side by side, `stride` apart along it.
constexpr int64_t kColumns = 64;

// The same passes, with a maximum and a sum for each column: neighbours in memory are neighbours in a
// vector, so there is nothing to fold. y may be x.
CPU_OPS_KERNEL void SoftmaxColumns(const float* x, float* y, int64_t extent, int64_t stride,
                                   int64_t columns, bool log) {
  float largest[kColumns], sums[kColumns] = {};
  std::fill_n(largest, kColumns, kLeast);
  for (int64_t i = 0; i < extent; ++i) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      largest[j] = largest[j] > x[i * stride + j] ? largest[j] : x[i * stride + j];
    }
  }
  for (int64_t j = 0; j < columns; ++j) largest[j] = Origin(largest[j]);
  for (int64_t i = 0; i < extent; ++i) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const float e = Exp(x[i * stride + j] - largest[j]);
      sums[j] += e;
      if (!log) y[i * stride + j] = e;
    }
  }
  for (int64_t j = 0; j < columns; ++j) {
    sums[j] = log ? largest[j] + std::log(sums[j]) : 1.0f / sums[j];
  }
  for (int64_t i = 0; i < extent; ++i) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = i * stride + j;
      y[at] = log ? x[at] - sums[j] : y[at] * sums[j];
    }
  }
}

CPU_OPS_KERNEL void SoftmaxGradientColumns(const float* y, const float* dy, float* dx, bool sum,
                                           int64_t extent, int64_t stride, int64_t columns,
                                           bool log) {
  float dots[kColumns] = {};
  for (int64_t i = 0; i < extent; ++i) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = i * stride + j;
      dots[j] += log ? dy[at] : y[at] * dy[at];
    }
  }
  for (int64_t i = 0; i < extent; ++i) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = i * stride + j;
      const float gradient = log ? dy[at] - Exp(y[at]) * dots[j] : y[at] * (dy[at] - dots[j]);
      dx[at] = gradient + (sum ? dx[at] : 0.0f);
    }
  }
}

// Backward needs y alone, so that y may be written over x.
template <bool kLog>
class SoftmaxOp final : public kit::ShapedOp<CpuOp, kit::SoftmaxRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call) noexcept override {
    const float* x = call.inputs[0].f32();
    float* y = call.outputs[0].f32();
    const Shape& shape = call.outputs[0].shape;
    const int64_t extent = shape[given_.axis], stride = shape.Count(given_.axis + 1);
    if (stride == 1) {
      ForRows(shape.Count(0, given_.axis), extent, [&](int64_t begin, int64_t end) {
        CPU_OPS_RUN(SoftmaxRows, x, y, extent, kLog, begin, end);
      });
      return {};
    }
    ForEachBlock(shape, [&](int64_t at, int64_t columns) {
      SoftmaxColumns(x + at, y + at, extent, stride, columns, kLog);
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const float *y = call.outputs[0].f32(), *dy = call.output_grads[0].f32();
    float* dx = call.input_grads[0].f32();
    const bool sum = Accumulates(call, 0);
    const Shape& shape = call.outputs[0].shape;
    const int64_t extent = shape[given_.axis], stride = shape.Count(given_.axis + 1);
    if (stride == 1) {
      ForRows(shape.Count(0, given_.axis), extent, [&](int64_t begin, int64_t end) {
        CPU_OPS_RUN(SoftmaxGradientRows, y, dy, dx, sum, extent, kLog, begin, end);
      });
      return {};
    }
    ForEachBlock(shape, [&](int64_t at, int64_t columns) {
      SoftmaxGradientColumns(y + at, dy + at, dx + at, sum, extent, stride, columns, kLog);
    });
    return {};
  }

  // body(offset, columns) for all blocks of columns.
  template <typename Body>
  void ForEachBlock(const Shape& shape, const Body& body) const noexcept {
    const int64_t extent = shape[given_.axis], stride = shape.Count(given_.axis + 1);
    const int64_t blocks = (stride + kColumns - 1) / kColumns;
    ForRows(shape.Count(0, given_.axis) * blocks, extent * std::min(stride, kColumns),
            [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                const int64_t column = i % blocks * kColumns;
                body(i / blocks * extent * stride + column, std::min(kColumns, stride - column));
              }
            });
  }
};

}  // namespace

const OpFactory kMakeSoftmax = kit::NewOp<SoftmaxOp<false>>;
const OpFactory kMakeLogSoftmax = kit::NewOp<SoftmaxOp<true>>;

}  // namespace engine::cpu_ops
