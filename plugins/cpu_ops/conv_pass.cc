#include "conv_pass.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "parallel.h"
#include "simd.h"
#include "small_gemm.h"

namespace engine::cpu_ops {
namespace {

// Multiplications below which a part is not worth waking a thread for.
constexpr int64_t kProductGrain = 64 * 64 * 64;
// Up to so many positions the weights are read where they are; packing would cost more.
constexpr int64_t kUnpackedPositions = 32;
// Tiles of one position in several samples: their rows are often a multiple of 4096 bytes apart and
// compete for the same places of the first-level cache.
constexpr int64_t kSampleTileRows = 8;
constexpr int64_t kChunkPositions = 160;
// Up to so many input channels, the gradients of a row of taps are made together.
constexpr int64_t kMergedChannels = 8;
constexpr int64_t kBlockFloats = 128 * 1024;  // of source and target together

constexpr int64_t PanelStride(int64_t columns) noexcept {
  return columns > kLanes ? kPanelColumns : kLanes;
}

// What tiles of at most `most` of `count` rows cost, per row: a tile of few rows waits for its own
// results, and each has a beginning and an end.
double TileCost(int64_t count, int64_t most) noexcept {
  const int64_t tiles = (count + most - 1) / most;
  const double rows = static_cast<double>(count) / static_cast<double>(tiles);
  return (std::max(rows, 4.0) + 1.0) / rows;
}

struct Range {
  int64_t begin, end;
  int64_t size() const noexcept { return std::max<int64_t>(end - begin, 0); }
};

// The outputs in [begin, end) that meet an input through `tap`.
Range OutputsThrough(const Window& window, int64_t tap, int64_t inputs, Range outputs) noexcept {
  const int64_t before = std::max<int64_t>(window.padding - tap, 0);
  const int64_t last = inputs - 1 + window.padding - tap;  // the input of an output, unpadded
  const int64_t first = (before + window.stride - 1) / window.stride;
  return {std::max(outputs.begin, first),
          std::min(outputs.end, last < 0 ? 0 : last / window.stride + 1)};
}

}  // namespace

ConvPass::ConvPass(Direction direction, const Window& window, const Plane& input,
                   const Plane& output)
    : direction_(direction),
      window_(window),
      source_(direction == Direction::kForward ? input : output),
      target_(direction == Direction::kForward ? output : input) {
  const auto plan = direction == Direction::kForward ? ForwardAxis : BackwardAxis;
  rows_ = plan(window, input.height);
  columns_ = plan(window, input.width);
}

int64_t ConvPass::panel_count() const noexcept {
  return (target_.channels + kPanelColumns - 1) / kPanelColumns;
}

// A bias and packed weights.
int64_t ConvPass::panel_floats() const noexcept {
  return (window_.kernel * window_.kernel * source_.channels + 1) * kPanelColumns;
}

// Blocks of samples whose planes stay in the second-level cache while all panels use them.
int64_t ConvPass::block_count(int64_t samples) const noexcept {
  const int64_t block = std::max<int64_t>(kBlockFloats / (source_.count() + target_.count()), 1);
  return (samples + block - 1) / block;
}

// A slot of the workspace has the panels that one thread packs: all where blocks of samples share them.
size_t ConvPass::workspace_bytes(int64_t samples) const noexcept {
  const int64_t panels = block_count(samples) > 1 ? panel_count() : 1;
  return static_cast<size_t>(panels * panel_floats()) * sizeof(float);
}

// Many panels are divided among the threads; of few, every thread makes all for its samples.
void ConvPass::Run(const Call& call, int32_t threads) const noexcept {
  const int64_t products = call.samples * target_.count() * source_.channels * window_.kernel;
  const int32_t parts = std::min(PartCount(products, kProductGrain), threads);
  const bool by_panel = panel_count() >= parts && block_count(call.samples) == 1;
  const int64_t units = by_panel ? panel_count() : call.samples;
  const int64_t slot = panel_floats() * (block_count(call.samples) > 1 ? panel_count() : 1);
  ForEachPart(parts, units, 1, [&](int32_t index, int64_t begin, int64_t end) {
    const Part part =
        by_panel ? Part{0, call.samples, begin, end} : Part{begin, end, 0, panel_count()};
    RunPart(call, part, static_cast<float*>(call.workspace) + slot * index);
  });
}

void ConvPass::RunPart(const Call& call, const Part& part, float* workspace) const noexcept {
  const int64_t samples = part.sample_end - part.sample_begin;
  if (samples == 0) return;
  if (block_count(call.samples) == 1) {
    for (int64_t i = part.panel_begin; i < part.panel_end; ++i) {
      RunPanel(call, Prepare(call, i, workspace), part.sample_begin, part.sample_end);
    }
    return;
  }
  // Packing once for all blocks needs memory for every panel, small beside that of the planes.
  const int64_t blocks = block_count(samples);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = part.panel_begin; i < part.panel_end; ++i) {
      RunPanel(call, Prepare(call, i, workspace + i * panel_floats(), block == 0),
               part.sample_begin + samples * block / blocks,
               part.sample_begin + samples * (block + 1) / blocks);
    }
  }
}

ConvPass::Panel ConvPass::Prepare(const Call& call, int64_t index, float* workspace,
                                  bool pack) const noexcept {
  Panel panel = {.first = index * kPanelColumns};
  panel.columns = std::min(kPanelColumns, target_.channels - panel.first);
  float* packed = workspace + kPanelColumns;
  const bool in_place = direction_ == Direction::kForward && target_.channels % kLanes == 0 &&
                        (target_.channels <= kPanelColumns ||
                         call.samples * target_.positions() <= kUnpackedPositions);
  panel.stride = in_place ? target_.channels : PanelStride(panel.columns);
  panel.weights = in_place ? call.weight + panel.first : packed;
  if (!in_place && pack) Pack(call.weight, panel, packed);
  if (call.bias != nullptr) {
    std::memcpy(workspace, call.bias + panel.first,
                static_cast<size_t>(panel.columns) * sizeof(float));
    panel.bias = workspace;
  }
  return panel;
}

// packed[i][j][c][0 : stride] for the taps (i, j) in the order of the plans and source channel c,
// with zeros behind the columns. Taps that nobody meets are left out.
void ConvPass::Pack(const float* weight, const Panel& panel, float* packed) const noexcept {
  const int64_t kernel = window_.kernel;
  const bool forward = direction_ == Direction::kForward;
  const int64_t inputs = forward ? source_.channels : target_.channels;
  const int64_t outputs = forward ? target_.channels : source_.channels;
  for (int64_t i = 0; i < kernel; ++i) {
    for (int64_t j = 0; j < kernel; ++j) {
      if (!rows_.Meets(i) || !columns_.Meets(j)) continue;
      const int64_t tap =
          rows_.taps[static_cast<size_t>(i)] * kernel + columns_.taps[static_cast<size_t>(j)];
      const float* matrix = weight + tap * inputs * outputs;  // (C, O)
      float* target = packed + (i * kernel + j) * source_.channels * panel.stride;
      if (!forward) {
        Transpose({matrix + panel.first * outputs, outputs}, panel.columns, outputs, target,
                  panel.stride);
        continue;
      }
      for (int64_t c = 0; c < inputs; ++c) {
        const float* row = matrix + c * outputs + panel.first;
        float* copy = target + c * panel.stride;
        std::memcpy(copy, row, static_cast<size_t>(panel.columns) * sizeof(float));
        std::fill(copy + panel.columns, copy + panel.stride, 0.0f);
      }
    }
  }
}

// Every target is in one pair of runs, so it is written once; adding nothing may be left out, but not
// writing zeros.
void ConvPass::RunPanel(const Call& call, const Panel& panel, int64_t begin,
                        int64_t end) const noexcept {
  for (const AxisRun& row : rows_.runs) {
    for (const AxisRun& column : columns_.runs) {
      if (call.sum && (row.tap_count == 0 || column.tap_count == 0)) continue;
      MultiplyPanel(ProductOf(call, panel, row, column, begin, end));
    }
  }
}

// All targets of samples [begin, end) that are in both runs: they meet the same taps.
PanelProduct ConvPass::ProductOf(const Call& call, const Panel& panel, const AxisRun& row,
                                 const AxisRun& column, int64_t begin, int64_t end) const noexcept {
  const int64_t source_row = source_.width * source_.channels;
  const int64_t target_row = target_.width * target_.channels;
  const int64_t tap_first = row.tap_first * window_.kernel + column.tap_first;
  const int64_t tap_size = source_.channels * panel.stride;
  const PositionLoop samples = {end - begin, source_.count(), target_.count()};
  const PositionLoop rows = {row.count, row.source_step * source_row, row.step * target_row};
  const PositionLoop columns = {column.count, column.source_step * source_.channels,
                                column.step * target_.channels};
  PanelProduct product = {
      .source = call.source + begin * source_.count() + row.source_first * source_row +
                column.source_first * source_.channels,
      .target = call.target + begin * target_.count() + row.first * target_row +
                column.first * target_.channels + panel.first,
      .outer = samples,
      .middle = rows,
      .tiled = columns,
      .segments = row.tap_count,
      .source_segment = source_row,
      .length = column.tap_count * source_.channels,
      .panel = panel.weights + tap_first * tap_size,
      .panel_segment = window_.kernel * tap_size,
      .panel_stride = panel.stride,
      .bias = panel.bias,
      .columns = panel.columns,
      .sum = call.sum,
  };
  double cost = TileCost(columns.count, kMaxTileRows);
  if (TileCost(rows.count, kMaxTileRows) < cost) {
    cost = TileCost(rows.count, kMaxTileRows);
    product.middle = columns;
    product.tiled = rows;
  }
  if (TileCost(samples.count, kSampleTileRows) < cost) {
    product.outer = rows;
    product.middle = columns;
    product.tiled = samples;
    product.tile_rows = kSampleTileRows;
  }
  return product;
}

size_t ConvWeightPass::workspace_bytes(int64_t samples) const noexcept {
  if (output_.channels % kLanes == 0) return 0;
  return static_cast<size_t>(samples * output_.positions() * padded_channels()) * sizeof(float);
}

int64_t ConvWeightPass::chunk_count(int64_t samples) const noexcept {
  const auto parts = [](int64_t count, int64_t size) { return (count + size - 1) / size; };
  if (output_.positions() <= kChunkPositions) {
    return parts(samples, kChunkPositions / output_.positions());
  }
  const int64_t rows = std::max<int64_t>(kChunkPositions / output_.width, 1);
  return samples * parts(output_.height, rows);
}

ConvWeightPass::Chunk ConvWeightPass::ChunkAt(int64_t index, int64_t samples) const noexcept {
  const int64_t chunks = chunk_count(samples);
  if (output_.positions() <= kChunkPositions) {
    return {samples * index / chunks, samples * (index + 1) / chunks, 0, output_.height};
  }
  const int64_t per_sample = chunks / samples;
  const int64_t sample = index / per_sample, part = index % per_sample;
  return {sample, sample + 1, output_.height * part / per_sample,
          output_.height * (part + 1) / per_sample};
}

// Each element of dweight has one thread, which adds chunk by chunk: the sums do not depend on the
// number of threads.
void ConvWeightPass::Run(const Call& call, int32_t threads) const noexcept {
  Call padded = call;
  const int64_t positions = call.samples * output_.positions();
  if (output_.channels % kLanes != 0) {
    auto* copy = static_cast<float*>(call.workspace);
    std::fill(copy, copy + positions * padded_channels(), 0.0f);
    for (int64_t i = 0; i < positions; ++i) {
      std::memcpy(copy + i * padded_channels(), call.dy + i * output_.channels,
                  static_cast<size_t>(output_.channels) * sizeof(float));
    }
    padded.dy = copy;
  }
  if (!call.sum) ZeroUnmetTaps(call.dweight);
  const int64_t panels = (output_.channels + kPanelColumns - 1) / kPanelColumns;
  const int64_t rows = window_.kernel;
  const int64_t products = positions * rows * rows * input_.channels * output_.channels;
  const int32_t parts = std::min(PartCount(products, kProductGrain), threads);
  ForEachPart(parts, panels * rows, 1, [&](int32_t, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < chunk_count(call.samples); ++i) {
      const Chunk chunk = ChunkAt(i, call.samples);
      for (int64_t unit = begin; unit < end; ++unit) {
        AddTapRow(padded, chunk, unit % rows, unit / rows * kPanelColumns, call.sum || i > 0);
      }
    }
  });
}

// Taps that only ever see padding, each in one piece: of a 3x3 kernel on a 1x1 plane these are
// eight ninths of the memory.
void ConvWeightPass::ZeroUnmetTaps(float* dweight) const noexcept {
  const int64_t matrix = input_.channels * output_.channels;
  for (int64_t tap = 0; tap < window_.kernel * window_.kernel; ++tap) {
    if (!Unmet(tap / window_.kernel, tap % window_.kernel)) continue;
    std::memset(dweight + tap * matrix, 0, static_cast<size_t>(matrix) * sizeof(float));
  }
}

bool ConvWeightPass::Unmet(int64_t row, int64_t column) const noexcept {
  return OutputsThrough(window_, row, input_.height, {0, output_.height}).size() == 0 ||
         OutputsThrough(window_, column, input_.width, {0, output_.width}).size() == 0;
}

// With few channels a tap alone would fill few registers. Where an output meets a whole row of taps
// they are taken as one tap of many channels: they are beside each other in x and in dweight.
void ConvWeightPass::AddTapRow(const Call& call, const Chunk& chunk, int64_t row, int64_t channel,
                               bool sum) const noexcept {
  const int64_t kernel = window_.kernel;
  const auto columns_of = [&](int64_t tap) {
    return OutputsThrough(window_, tap, input_.width, {0, output_.width});
  };
  if (input_.channels > kMergedChannels) {
    for (int64_t tap = 0; tap < kernel; ++tap) {
      const Range columns = columns_of(tap);
      if (Unmet(row, tap)) continue;
      AddTaps(call, chunk, {row, tap, 1, channel, columns.begin, columns.end}, sum);
    }
    return;
  }
  const int64_t begin = columns_of(0).begin;
  const int64_t end = std::max(columns_of(kernel - 1).end, begin);
  AddTaps(call, chunk, {row, 0, kernel, channel, begin, end}, sum);
  for (int64_t tap = 0; tap < kernel; ++tap) {
    const Range columns = columns_of(tap);
    AddTaps(call, chunk, {row, tap, 1, channel, columns.begin, std::min(columns.end, begin)}, true);
    AddTaps(call, chunk, {row, tap, 1, channel, std::max(columns.begin, end), columns.end}, true);
  }
}

void ConvWeightPass::AddTaps(const Call& call, const Chunk& chunk, const Taps& taps,
                             bool sum) const noexcept {
  const Range rows =
      OutputsThrough(window_, taps.row, input_.height, {chunk.row_begin, chunk.row_end});
  const Range columns = {taps.output_begin, taps.output_end};
  if (sum && (rows.size() == 0 || columns.size() == 0)) return;
  const int64_t source_row = input_.width * input_.channels;
  const int64_t target_row = output_.width * padded_channels();
  const int64_t input_row = rows.begin * window_.stride + taps.row - window_.padding;
  const int64_t input_column = columns.begin * window_.stride + taps.column - window_.padding;
  OuterProduct product = {
      .source = call.x + chunk.sample_begin * input_.count() + input_row * source_row +
                input_column * input_.channels,
      .target = call.dy + (chunk.sample_begin * output_.height + rows.begin) * target_row +
                columns.begin * padded_channels() + taps.channel,
      .loops = {{chunk.sample_end - chunk.sample_begin, input_.count(),
                 output_.height * target_row},
                {rows.size(), window_.stride * source_row, target_row},
                {columns.size(), window_.stride * input_.channels, padded_channels()}},
      .result = call.dweight +
                (taps.row * window_.kernel + taps.column) * input_.channels * output_.channels +
                taps.channel,
      .result_stride = output_.channels,
      .channels = taps.count * input_.channels,
      .columns = std::min(kPanelColumns, output_.channels - taps.channel),
      .sum = sum,
  };
  // Not std::stable_sort, which allocates.
  for (const int i : {0, 1, 0}) {
    if (product.loops[i + 1].count < product.loops[i].count) {
      std::swap(product.loops[i], product.loops[i + 1]);
    }
  }
  AddOuterProducts(product);
}

}  // namespace engine::cpu_ops
