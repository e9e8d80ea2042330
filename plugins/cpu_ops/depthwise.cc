#include "depthwise.h"

#include <algorithm>
#include <cstring>

#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

constexpr int64_t kTile = 4;  // targets that share what is read of the weights
// Channels that a thread takes together for the gradient of the weight: the rows of two planes stay
// in the second-level cache while all taps of a row use them.
constexpr int64_t kChannelBlock = 64;

// Some targets of one row, `target_step` apart, which all meet the same taps.
struct Row {
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

template <int kCount>
CPU_OPS_INLINE void Targets(const Row& row, int64_t first) noexcept {
  for (int64_t c = 0; c < row.channels; c += kLanes) {
    const int64_t lanes = LanesAt(c, row.channels);
    Float16 sums[kCount];
    const Float16 start = row.bias != nullptr ? Load(row.bias + c, lanes) : Float16{};
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) sums[k] = start;
    for (int64_t i = 0; i < row.row_taps; ++i) {
      const float* source = row.source + first * row.source_step + i * row.source_row + c;
      for (int64_t j = 0; j < row.column_taps; ++j) {
        const Float16 weight = Load(row.weight + row.taps[i * row.tap_pitch + j] + c, lanes);
#pragma GCC unroll 4
        for (int k = 0; k < kCount; ++k) {
          sums[k] += weight * Load(source + k * row.source_step, lanes);
        }
        source += row.source_tap;
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) {
      float* target = row.target + (first + k) * row.target_step + c;
      Store(target, row.sum ? sums[k] + Load(target, lanes) : sums[k], lanes);
    }
  }
}

CPU_OPS_KERNEL void RunRow(const Row& row) {
  int64_t i = 0;
  for (; i + kTile <= row.count; i += kTile) Targets<kTile>(row, i);
  for (; i < row.count; ++i) Targets<1>(row, i);
}

// Adds, for channels [0, count), the products of `positions` pairs to `sums`.
CPU_OPS_KERNEL void AddProducts(const float* x, int64_t x_step, const float* dy, int64_t dy_step,
                                int64_t positions, int64_t count, float* sums) {
  for (int64_t c = 0; c < count; c += kLanes) {
    const int64_t lanes = LanesAt(c, count);
    Float16 parts[kTile] = {};
    int64_t i = 0;
    for (; i + kTile <= positions; i += kTile) {
#pragma GCC unroll 4
      for (int64_t k = 0; k < kTile; ++k) {
        parts[k] += Load(x + (i + k) * x_step + c, lanes) * Load(dy + (i + k) * dy_step + c, lanes);
      }
    }
    for (; i < positions; ++i) {
      parts[0] += Load(x + i * x_step + c, lanes) * Load(dy + i * dy_step + c, lanes);
    }
    Store(sums + c, Load(sums + c, lanes) + ((parts[0] + parts[1]) + (parts[2] + parts[3])), lanes);
  }
}

// All pairs of x and dy that meet through a tap of row `row_tap`, for channels [begin, end).
void AddTapRow(const ConvGeometry& conv, const ConvWeightPass::Call& call, int64_t row_tap,
               int64_t begin, int64_t end) noexcept {
  const auto& [window, input, output, channels] = conv;
  float* const dweight = call.dweight + row_tap * window.columns.kernel * channels + begin;
  for (int64_t j = 0; j < window.columns.kernel && !call.sum; ++j) {
    std::fill_n(dweight + j * channels, end - begin, 0.0f);
  }
  const Window::Range rows = window.rows.Through(row_tap, input.height, {0, output.height});
  for (int64_t sample = 0; sample < call.samples; ++sample) {
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      const int64_t y = sample * input.height + window.rows.InputOf(h, row_tap);
      const float* dy = call.dy + (sample * output.height + h) * output.width * channels + begin;
      for (int64_t j = 0; j < window.columns.kernel; ++j) {
        const Window::Range columns = window.columns.Through(j, input.width, {0, output.width});
        if (columns.size() == 0) continue;
        const int64_t x = window.columns.InputOf(columns.begin, j);
        AddProducts(call.x + (y * input.width + x) * channels + begin,
                    window.columns.stride * channels, dy + columns.begin * channels, channels,
                    columns.size(), end - begin, dweight + j * channels);
      }
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

// Each element of dweight has one thread: the sums do not depend on the number of threads.
void AddDepthwiseWeights(const ConvGeometry& geometry, const ConvWeightPass::Call& call,
                         int32_t threads) noexcept {
  const int64_t rows = geometry.window.rows.kernel, channels = geometry.groups;
  const int64_t blocks = (channels + kChannelBlock - 1) / kChannelBlock;
  const int64_t products = call.samples * geometry.output.positions() * geometry.weights();
  const int32_t parts = std::min(PartCount(products, kElementGrain), threads);
  ForEachPart(parts, blocks * rows, 1, [&](int32_t, int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t channel = unit / rows * kChannelBlock;
      AddTapRow(geometry, call, unit % rows, channel, std::min(channel + kChannelBlock, channels));
    }
  });
}

}  // namespace engine::cpu_ops
