#include "depthwise.h"

#include <algorithm>

#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

constexpr int64_t kTargets = 4;  // targets that share what is read of the weights
// Channels that a thread takes together for the gradient of the weight: the rows of two planes stay
// in the second-level cache while all taps of a row use them.
constexpr int64_t kChannelBlock = 64;

// Some targets of one row, `target_step` apart, which all meet the same taps.
struct TargetRow {
  const float* source;  // of the first target, through the first taps
  const float* weight;
  const float* bias;  // null: none
  float* target;
  const int64_t* taps;  // `row_taps` rows of `tap_pitch`, of which `column_taps` count
  int64_t row_taps, column_taps, tap_pitch;
  int64_t source_row, source_tap;  // from a tap to the next
  int64_t count, source_step, target_step;
  int64_t channels;
  bool sum;
};

// kCount targets from `first` on. Where targets are as far apart as their sources through one tap
// and the next, kTaps columns of taps share what they read; else kTaps is 0.
template <typename V, int kCount, int kTaps>
CPU_OPS_INLINE void Targets(const TargetRow& row, int64_t first) noexcept {
  ForLanes<V>(row.channels, [&](int64_t c, auto lanes) CPU_OPS_INLINE_LAMBDA {
    V sums[kCount];
    const V start = row.bias != nullptr ? LoadAs<V>(row.bias + c, lanes) : V{};
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) sums[k] = start;
    for (int64_t i = 0; i < row.row_taps; ++i) {
      const float* source = row.source + first * row.source_step + i * row.source_row + c;
      const int64_t* taps = row.taps + i * row.tap_pitch;
      V weights[kTaps + 1];
#pragma GCC unroll 5
      for (int j = 0; j < kTaps; ++j) weights[j] = LoadAs<V>(row.weight + taps[j] + c, lanes);
#pragma GCC unroll 8
      for (int m = 0; kTaps > 0 && m < kCount + kTaps - 1; ++m, source += row.source_tap) {
        const V x = LoadAs<V>(source, lanes);
#pragma GCC unroll 5
        for (int j = 0; j < kTaps; ++j) {
          if (j <= m && m - j < kCount) sums[m - j] += weights[j] * x;
        }
      }
      for (int64_t j = 0; kTaps == 0 && j < row.column_taps; ++j, source += row.source_tap) {
        const V weight = LoadAs<V>(row.weight + taps[j] + c, lanes);
#pragma GCC unroll 4
        for (int k = 0; k < kCount; ++k) {
          sums[k] += weight * LoadAs<V>(source + k * row.source_step, lanes);
        }
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) {
      float* target = row.target + (first + k) * row.target_step + c;
      StoreAs(target, row.sum ? sums[k] + LoadAs<V>(target, lanes) : sums[k], lanes);
    }
  });
}

template <typename V, int kTaps>
CPU_OPS_INLINE void AllTargets(const TargetRow& row) noexcept {
  int64_t i = 0;
  for (; i + kTargets <= row.count; i += kTargets) Targets<V, kTargets, kTaps>(row, i);
  for (; i < row.count; ++i) Targets<V, 1, 0>(row, i);
}

void RunRow(const TargetRow& row) noexcept {
  const bool shares = row.source_step == row.source_tap;
  ForProcessor([&]<typename V>(V) CPU_OPS_INLINE_LAMBDA {
    if (shares && row.column_taps == 3) return AllTargets<V, 3>(row);
    if (shares && row.column_taps == 5) return AllTargets<V, 5>(row);
    AllTargets<V, 0>(row);
  });
}

// Pairs of x and dy, for channels [0, count), that meet through some taps of a row.
struct Pairs {
  const float *x, *dy;
  int64_t x_step, x_tap, dy_step;  // from a pair, and from a tap, to the next
  int64_t positions, count;
  float* sums;
  int64_t pitch;  // of `sums`, from a tap to the next
};

// Adds the products of the pairs of kTaps taps. Two positions at a time, as sums wait for each
// other.
template <typename V, int kTaps>
CPU_OPS_INLINE void AddTapsOf(const Pairs& pairs) noexcept {
  ForLanes<V>(pairs.count, [&](int64_t c, auto lanes) CPU_OPS_INLINE_LAMBDA {
    V even[kTaps] = {}, odd[kTaps] = {};
    const float *x = pairs.x + c, *dy = pairs.dy + c;
    int64_t i = 0;
    for (; i + 2 <= pairs.positions; i += 2) {
      const V first = LoadAs<V>(dy, lanes), second = LoadAs<V>(dy + pairs.dy_step, lanes);
#pragma GCC unroll 5
      for (int j = 0; j < kTaps; ++j) {
        even[j] += LoadAs<V>(x + j * pairs.x_tap, lanes) * first;
        odd[j] += LoadAs<V>(x + pairs.x_step + j * pairs.x_tap, lanes) * second;
      }
      x += 2 * pairs.x_step;
      dy += 2 * pairs.dy_step;
    }
#pragma GCC unroll 5
    for (int j = 0; j < kTaps; ++j) {
      if (i < pairs.positions)
        even[j] += LoadAs<V>(x + j * pairs.x_tap, lanes) * LoadAs<V>(dy, lanes);
      float* sum = pairs.sums + j * pairs.pitch + c;
      StoreAs(sum, LoadAs<V>(sum, lanes) + (even[j] + odd[j]), lanes);
    }
  });
}

template <int kTaps>
void AddTaps(const Pairs& pairs) noexcept {
  ForProcessor([&]<typename V>(V) CPU_OPS_INLINE_LAMBDA { AddTapsOf<V, kTaps>(pairs); });
}

// Some of the weights: of the taps of some rows, for channels [begin, end).
struct WeightPart {
  Window::Range rows;
  int64_t begin, end;
};

// All pairs of x and dy of output row `h`, counted over all samples, through a row of taps. Outputs
// that meet all of its taps are taken together.
void AddRow(const ConvGeometry& conv, const ConvWeightPass::Call& call, const WeightPart& part,
            int64_t h, int64_t row_tap) noexcept {
  const kit::PlaneWindow& window = conv.window;
  const Plane &input = conv.input, &output = conv.output;
  const int64_t channels = conv.groups;
  const int64_t kernel = window.columns.kernel;
  const int64_t y =
      h / output.height * input.height + window.rows.InputOf(h % output.height, row_tap);
  const auto columns_of = [&](int64_t tap) {
    return window.columns.Through(tap, input.width, {0, output.width});
  };
  const auto add = [&](int64_t tap, int64_t begin, int64_t end, auto* kernel_of) {
    if (begin >= end) return;
    kernel_of({.x = call.x + (y * input.width + window.columns.InputOf(begin, tap)) * channels +
                    part.begin,
               .dy = call.dy + (h * output.width + begin) * channels + part.begin,
               .x_step = window.columns.stride * channels,
               .x_tap = window.columns.dilation * channels,
               .dy_step = channels,
               .positions = end - begin,
               .count = part.end - part.begin,
               .sums = call.dweight + (row_tap * kernel + tap) * channels + part.begin,
               .pitch = channels});
  };
  const bool together = kernel == 3 || kernel == 5;
  const int64_t begin = together ? columns_of(0).begin : output.width;
  const int64_t end = together ? std::max(columns_of(kernel - 1).end, begin) : output.width;
  add(0, begin, end, kernel == 3 ? AddTaps<3> : AddTaps<5>);
  for (int64_t tap = 0; tap < kernel; ++tap) {
    const Window::Range columns = columns_of(tap);
    add(tap, columns.begin, std::min(columns.end, begin), AddTaps<1>);
    add(tap, std::max(columns.begin, end), columns.end, AddTaps<1>);
  }
}

void AddPart(const ConvGeometry& conv, const ConvWeightPass::Call& call,
             const WeightPart& part) noexcept {
  const Window& rows = conv.window.rows;
  const int64_t kernel = conv.window.columns.kernel;
  for (int64_t tap = part.rows.begin * kernel; tap < part.rows.end * kernel && !call.sum; ++tap) {
    std::fill_n(call.dweight + tap * conv.groups + part.begin, part.end - part.begin, 0.0f);
  }
  for (int64_t h = 0; h < call.samples * conv.output.height; ++h) {
    const Window::Range taps = rows.Taps(h % conv.output.height, conv.input.height);
    for (int64_t i = std::max(taps.begin, part.rows.begin); i < std::min(taps.end, part.rows.end);
         ++i) {
      AddRow(conv, call, part, h, i);
    }
  }
}

}  // namespace

DepthwisePass::DepthwisePass(ConvPass::Direction direction, const ConvGeometry& geometry) {
  const bool forward = direction == ConvPass::Direction::kForward;
  source_ = forward ? geometry.input : geometry.output;
  target_ = forward ? geometry.output : geometry.input;
  const auto plan = forward ? ForwardAxis : BackwardAxis;
  const AxisPlan rows = plan(geometry.window.rows, geometry.input.height, geometry.output.height);
  columns_ = plan(geometry.window.columns, geometry.input.width, geometry.output.width);
  row_step_ = rows.tap_step;
  for (const int64_t i : rows.taps) {
    for (const int64_t j : columns_.taps) {
      taps_.push_back((i * columns_.size() + j) * geometry.groups);
    }
  }
  rows_.resize(static_cast<size_t>(target_.height));
  for (const AxisRun& run : rows.runs) {
    for (int64_t i = 0; i < run.count; ++i) {
      AxisRun& row = rows_[static_cast<size_t>(run.first + i * run.step)];
      row = run;
      row.source_first += i * run.source_step;
    }
  }
}

void DepthwisePass::Run(const ConvPass::Call& call, int32_t threads) const noexcept {
  const int64_t channels = source_.channels;
  const int64_t rows = call.samples * target_.height;
  const int64_t products = target_.width * channels * static_cast<int64_t>(taps_.size());
  const int32_t parts = std::min(PartCount(rows, kElementGrain / products + 1), threads);
  ForEachPart(parts, rows, 1, [&](int32_t, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const AxisRun& row = rows_[static_cast<size_t>(at % target_.height)];
      const int64_t source = at / target_.height * source_.height + row.source_first;
      for (const AxisRun& column : columns_.runs) {
        RunRow({.source = call.source + (source * source_.width + column.source_first) * channels,
                .weight = call.weight,
                .bias = call.bias,
                .target = call.target + (at * target_.width + column.first) * channels,
                .taps = taps_.data() + row.tap_first * columns_.size() + column.tap_first,
                .row_taps = row.tap_count,
                .column_taps = column.tap_count,
                .tap_pitch = columns_.size(),
                .source_row = row_step_ * source_.width * channels,
                .source_tap = columns_.tap_step * channels,
                .count = column.count,
                .source_step = column.source_step * channels,
                .target_step = column.step * channels,
                .channels = channels,
                .sum = call.sum});
      }
    }
  });
}

// Each element of dweight has one thread, which adds row by row: the sums do not depend on the
// number of threads. Only where there are not channels enough do threads share them by rows of taps,
// as each reads everything again.
void AddDepthwiseWeights(const ConvGeometry& geometry, const ConvWeightPass::Call& call,
                         int32_t threads) noexcept {
  const int64_t rows = geometry.window.rows.kernel, channels = geometry.groups;
  const int64_t blocks = (channels + kChannelBlock - 1) / kChannelBlock;
  const int64_t products = call.samples * geometry.output.positions() * geometry.weights();
  const int32_t parts = std::min(PartCount(products, kElementGrain), threads);
  const int64_t cuts = blocks >= parts ? 1 : rows;  // of the rows of taps
  ForEachPart(parts, blocks * cuts, 1, [&](int32_t, int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t cut = unit % cuts, channel = unit / cuts * kChannelBlock;
      AddPart(geometry, call,
              {.rows = {cut * rows / cuts, (cut + 1) * rows / cuts},
               .begin = channel,
               .end = std::min(channel + kChannelBlock, channels)});
    }
  });
}

}  // namespace engine::cpu_ops
