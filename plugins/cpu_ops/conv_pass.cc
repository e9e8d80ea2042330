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

using Range = Window::Range;

}  // namespace

ConvPass::ConvPass(Direction direction, const ConvGeometry& geometry)
    : direction_(direction), groups_(geometry.groups) {
  const Plane &input = geometry.input, &output = geometry.output;
  const bool forward = direction == Direction::kForward;
  source_ = forward ? input : output;
  target_ = forward ? output : input;
  const auto plan = forward ? ForwardAxis : BackwardAxis;
  rows_ = plan(geometry.window.rows, input.height, output.height);
  columns_ = plan(geometry.window.columns, input.width, output.width);
}

int64_t ConvPass::panels_of_group() const noexcept {
  return (targets() + kPanelColumns - 1) / kPanelColumns;
}

// A bias and packed weights.
int64_t ConvPass::panel_floats() const noexcept {
  return (rows_.size() * columns_.size() * sources() + 1) * kPanelColumns;
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
  const int64_t products = call.samples * target_.count() * sources() * rows_.size();
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
  Panel panel = {.group = index / panels_of_group()};
  const int64_t in_group = index % panels_of_group() * kPanelColumns;
  panel.first = panel.group * targets() + in_group;
  panel.columns = std::min(kPanelColumns, targets() - in_group);
  float* packed = workspace + kPanelColumns;
  const bool in_place = direction_ == Direction::kForward && targets() % kLanes == 0 &&
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

// packed[i][j][c][0 : stride] for the taps (i, j) in the order of the plans and source channel c of
// the group, with zeros behind the columns. Taps that nobody meets are left out.
void ConvPass::Pack(const float* weight, const Panel& panel, float* packed) const noexcept {
  const bool forward = direction_ == Direction::kForward;
  const int64_t inputs = forward ? sources() : targets();
  const int64_t outputs = forward ? target_.channels : source_.channels;  // of all groups
  for (int64_t i = 0; i < rows_.size(); ++i) {
    for (int64_t j = 0; j < columns_.size(); ++j) {
      if (!rows_.Meets(i) || !columns_.Meets(j)) continue;
      const int64_t tap = rows_.taps[static_cast<size_t>(i)] * columns_.size() +
                          columns_.taps[static_cast<size_t>(j)];
      const float* matrix = weight + tap * inputs * outputs;  // (C / groups, O)
      float* target = packed + (i * columns_.size() + j) * sources() * panel.stride;
      if (!forward) {
        const int64_t first = panel.first - panel.group * targets();
        Transpose({matrix + first * outputs + panel.group * sources(), outputs}, panel.columns,
                  sources(), target, panel.stride);
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
  const int64_t tap_first = row.tap_first * columns_.size() + column.tap_first;
  const int64_t tap_size = sources() * panel.stride;
  // Taps whose sources are beside each other are taken as one of many channels.
  const bool dense = groups_ == 1 && columns_.tap_step == 1;
  const PositionLoop samples = {end - begin, source_.count(), target_.count()};
  const PositionLoop rows = {row.count, row.source_step * source_row, row.step * target_row};
  const PositionLoop columns = {column.count, column.source_step * source_.channels,
                                column.step * target_.channels};
  PanelProduct product = {
      .source = call.source + begin * source_.count() + row.source_first * source_row +
                column.source_first * source_.channels + panel.group * sources(),
      .target = call.target + begin * target_.count() + row.first * target_row +
                column.first * target_.channels + panel.first,
      .outer = samples,
      .middle = rows,
      .tiled = columns,
      .segments = row.tap_count,
      .source_segment = rows_.tap_step * source_row,
      .taps = dense ? 1 : column.tap_count,
      .source_tap = columns_.tap_step * source_.channels,
      .length = dense ? column.tap_count * source_.channels : sources(),
      .panel = panel.weights + tap_first * tap_size,
      .panel_segment = columns_.size() * tap_size,
      .panel_stride = panel.stride,
      .bias = panel.bias,
      .columns = panel.columns,
      .sum = call.sum,
  };
  double cost = TileCost(columns.count, MaxTileRows());
  if (TileCost(rows.count, MaxTileRows()) < cost) {
    cost = TileCost(rows.count, MaxTileRows());
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
  if (conv_.outputs() == padded_outputs()) return 0;
  return static_cast<size_t>(samples * conv_.output.positions() * padded_channels()) *
         sizeof(float);
}

int64_t ConvWeightPass::chunk_count(int64_t samples) const noexcept {
  const auto parts = [](int64_t count, int64_t size) { return (count + size - 1) / size; };
  if (conv_.output.positions() <= kChunkPositions) {
    return parts(samples, kChunkPositions / conv_.output.positions());
  }
  const int64_t rows = std::max<int64_t>(kChunkPositions / conv_.output.width, 1);
  return samples * parts(conv_.output.height, rows);
}

ConvWeightPass::Chunk ConvWeightPass::ChunkAt(int64_t index, int64_t samples) const noexcept {
  const int64_t chunks = chunk_count(samples);
  if (conv_.output.positions() <= kChunkPositions) {
    return {samples * index / chunks, samples * (index + 1) / chunks, 0, conv_.output.height};
  }
  const int64_t per_sample = chunks / samples;
  const int64_t sample = index / per_sample, part = index % per_sample;
  return {sample, sample + 1, conv_.output.height * part / per_sample,
          conv_.output.height * (part + 1) / per_sample};
}

// dy with the channels of each group padded to whole registers, which tiles read.
const float* ConvWeightPass::PadOutputs(const Call& call) const noexcept {
  if (conv_.outputs() == padded_outputs()) return call.dy;
  auto* copy = static_cast<float*>(call.workspace);
  const int64_t rows = call.samples * conv_.output.positions() * conv_.groups;
  for (int64_t i = 0; i < rows; ++i) {
    float* const row = copy + i * padded_outputs();
    std::memcpy(row, call.dy + i * conv_.outputs(),
                static_cast<size_t>(conv_.outputs()) * sizeof(float));
    std::fill(row + conv_.outputs(), row + padded_outputs(), 0.0f);
  }
  return copy;
}

// Each element of dweight has one thread, which adds chunk by chunk: the sums do not depend on the
// number of threads.
void ConvWeightPass::Run(const Call& call, int32_t threads) const noexcept {
  Call padded = call;
  padded.dy = PadOutputs(call);
  if (!call.sum) ZeroUnmetTaps(call.dweight);
  const int64_t panels = (conv_.outputs() + kPanelColumns - 1) / kPanelColumns;  // of a group
  const int64_t rows = conv_.window.rows.kernel;
  const int64_t products = call.samples * conv_.output.positions() * conv_.weights();
  const int32_t parts = std::min(PartCount(products, kProductGrain), threads);
  ForEachPart(parts, conv_.groups * panels * rows, 1, [&](int32_t, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < chunk_count(call.samples); ++i) {
      const Chunk chunk = ChunkAt(i, call.samples);
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t index = unit / rows;
        AddTapRow(padded, chunk, unit % rows, {index / panels, index % panels * kPanelColumns},
                  call.sum || i > 0);
      }
    }
  });
}

// Taps that only ever see padding, each in one piece: of a 3x3 kernel on a 1x1 plane these are
// eight ninths of the memory.
void ConvWeightPass::ZeroUnmetTaps(float* dweight) const noexcept {
  const int64_t matrix = conv_.inputs() * conv_.output.channels;
  const int64_t columns = conv_.window.columns.kernel;
  for (int64_t tap = 0; tap < conv_.window.taps(); ++tap) {
    if (!Unmet(tap / columns, tap % columns)) continue;
    std::memset(dweight + tap * matrix, 0, static_cast<size_t>(matrix) * sizeof(float));
  }
}

bool ConvWeightPass::Unmet(int64_t row, int64_t column) const noexcept {
  const Plane &in = conv_.input, &out = conv_.output;
  return conv_.window.rows.Through(row, in.height, {0, out.height}).size() == 0 ||
         conv_.window.columns.Through(column, in.width, {0, out.width}).size() == 0;
}

// With few channels a tap alone would fill few registers. Where an output meets a whole row of taps
// they are taken as one tap of many channels: they are beside each other in x and in dweight.
void ConvWeightPass::AddTapRow(const Call& call, const Chunk& chunk, int64_t row,
                               const Panel& panel, bool sum) const noexcept {
  const Window& window = conv_.window.columns;
  const auto columns_of = [&](int64_t tap) {
    return window.Through(tap, conv_.input.width, {0, conv_.output.width});
  };
  if (conv_.input.channels > kMergedChannels || conv_.groups > 1 || window.dilation > 1) {
    for (int64_t tap = 0; tap < window.kernel; ++tap) {
      const Range columns = columns_of(tap);
      if (Unmet(row, tap)) continue;
      AddTaps(call, chunk, panel, {row, tap, 1, columns.begin, columns.end}, sum);
    }
    return;
  }
  const int64_t begin = columns_of(0).begin;
  const int64_t end = std::max(columns_of(window.kernel - 1).end, begin);
  AddTaps(call, chunk, panel, {row, 0, window.kernel, begin, end}, sum);
  for (int64_t tap = 0; tap < window.kernel; ++tap) {
    const Range columns = columns_of(tap);
    AddTaps(call, chunk, panel, {row, tap, 1, columns.begin, std::min(columns.end, begin)}, true);
    AddTaps(call, chunk, panel, {row, tap, 1, std::max(columns.begin, end), columns.end}, true);
  }
}

void ConvWeightPass::AddTaps(const Call& call, const Chunk& chunk, const Panel& panel,
                             const Taps& taps, bool sum) const noexcept {
  const auto& [window, input, output, groups] = conv_;
  const Range rows = window.rows.Through(taps.row, input.height, {chunk.row_begin, chunk.row_end});
  const Range columns = {taps.output_begin, taps.output_end};
  if (sum && (rows.size() == 0 || columns.size() == 0)) return;
  const int64_t source_row = input.width * input.channels;
  const int64_t target_row = output.width * padded_channels();
  OuterProduct product = {
      .source = call.x + chunk.sample_begin * input.count() +
                window.rows.InputOf(rows.begin, taps.row) * source_row +
                window.columns.InputOf(columns.begin, taps.column) * input.channels +
                panel.group * conv_.inputs(),
      .target = call.dy + (chunk.sample_begin * output.height + rows.begin) * target_row +
                columns.begin * padded_channels() + panel.group * padded_outputs() + panel.first,
      .loops = {{chunk.sample_end - chunk.sample_begin, input.count(), output.height * target_row},
                {rows.size(), window.rows.stride * source_row, target_row},
                {columns.size(), window.columns.stride * input.channels, padded_channels()}},
      .result =
          call.dweight +
          (taps.row * window.columns.kernel + taps.column) * conv_.inputs() * output.channels +
          panel.group * conv_.outputs() + panel.first,
      .result_stride = output.channels,
      .channels = taps.count * conv_.inputs(),
      .columns = std::min(kPanelColumns, conv_.outputs() - panel.first),
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
