#include "winograd.h"

#include <algorithm>
#include <type_traits>

#include "parallel.h"
#include "simd.h"
#include "small_gemm.h"

namespace engine::cpu_ops {
namespace {

constexpr int64_t kTile = 4, kTaps = 3, kPatch = kTile + kTaps - 1, kPoints = kPatch * kPatch;

template <int kRows, int kColumns>
struct Matrix {
  float at[kRows][kColumns];

  constexpr Matrix<kColumns, kRows> Transposed() const noexcept {
    Matrix<kColumns, kRows> transposed = {};
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) transposed.at[j][i] = at[i][j];
    }
    return transposed;
  }
};

// At the points 0, 1, -1, 2, -2 and infinity: y = A^T ((G w G^T) * (B^T x B)) A. The gradients are its
// adjoints.
constexpr Matrix<6, 6> kInput = {{{4, 0, -5, 0, 1, 0},
                                  {0, -4, -4, 1, 1, 0},
                                  {0, 4, -4, -1, 1, 0},
                                  {0, -2, -1, 2, 1, 0},
                                  {0, 2, -1, -2, 1, 0},
                                  {0, 4, 0, -5, 0, 1}}};
constexpr Matrix<6, 3> kWeight = {{{1 / 4.0f, 0, 0},
                                   {-1 / 6.0f, -1 / 6.0f, -1 / 6.0f},
                                   {-1 / 6.0f, 1 / 6.0f, -1 / 6.0f},
                                   {1 / 24.0f, 1 / 12.0f, 1 / 6.0f},
                                   {1 / 24.0f, -1 / 12.0f, 1 / 6.0f},
                                   {0, 0, 1}}};
constexpr Matrix<4, 6> kOutput = {
    {{1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 0}, {0, 1, 1, 4, 4, 0}, {0, 1, -1, 8, -8, 1}}};

// Row i of the matrix times `column`.
template <auto kMatrix, typename V, int kColumns>
CPU_OPS_INLINE V Product(int i, const V (&column)[kColumns]) noexcept {
  V sum{};
  bool is_first = true;
#pragma GCC unroll 6
  for (int k = 0; k < kColumns; ++k) {
    const float factor = kMatrix.at[i][k];
    if (factor == 0.0f) continue;
    sum = is_first ? factor * column[k] : sum + factor * column[k];
    is_first = false;
  }
  return sum;
}

// M X M^T of as many matrices X at once: element (i, j) of them is load(i, j), and store(i, j, lanes)
// takes the result's.
template <typename V, auto kMatrix, int kRows, int kColumns, typename Load, typename Store>
CPU_OPS_INLINE void Transform(const Load& load, const Store& store) noexcept {
  V rows[kRows][kColumns];
#pragma GCC unroll 6
  for (int j = 0; j < kColumns; ++j) {
    V column[kColumns];
#pragma GCC unroll 6
    for (int i = 0; i < kColumns; ++i) column[i] = load(i, j);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) rows[i][j] = Product<kMatrix>(i, column);
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 6
    for (int j = 0; j < kRows; ++j) store(i, j, Product<kMatrix>(j, rows[i]));
  }
}

// The patches of a plane for its tiles: they begin some positions before each, so that those of
// inputs overlap. Nothing outside of the plane is read or written.
struct Patches {
  Plane plane;
  int64_t rows_before, columns_before;
  int64_t tile_rows, tile_columns;

  CPU_OPS_INLINE int64_t count() const noexcept { return tile_rows * tile_columns; }
  CPU_OPS_INLINE int64_t RowOf(int64_t tile) const noexcept {
    return tile % count() / tile_columns * kTile - rows_before;
  }
  CPU_OPS_INLINE int64_t ColumnOf(int64_t tile) const noexcept {
    return tile % tile_columns * kTile - columns_before;
  }
  CPU_OPS_INLINE int64_t OffsetOf(int64_t tile, int64_t row, int64_t column) const noexcept {
    return ((tile / count() * plane.height + row) * plane.width + column) * plane.channels;
  }
  CPU_OPS_INLINE bool Has(int64_t row, int64_t column) const noexcept {
    return row >= 0 && row < plane.height && column >= 0 && column < plane.width;
  }
};

// A block of tiles [begin, end) as 36 matrices (tiles, channels), or of weights as (sources, targets),
// `stride` apart.
struct Points {
  float* data;
  int64_t stride;
};

// Not a power of two, at which all points would compete for one place of the cache.
int64_t PointStride(int64_t rows, int64_t columns) noexcept {
  return rows * columns + kLanes;
}

template <typename V, auto kMatrix, int kSize>
CPU_OPS_INLINE void TransformPatches(const Patches& patches, const float* plane, int64_t begin,
                                     int64_t end, Points points) noexcept {
  const int64_t channels = patches.plane.channels, width = patches.plane.width * channels;
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t row = patches.RowOf(tile), column = patches.ColumnOf(tile);
    const float* const corner = plane + patches.OffsetOf(tile, row, column);
    const auto transform = [&](auto is_inside) CPU_OPS_INLINE_LAMBDA {
      for (int64_t c = 0; c < channels; c += kWidth<V>) {
        float* const target = points.data + (tile - begin) * channels + c;
        Transform<V, kMatrix, kPatch, kSize>(
            [&](int i, int j) CPU_OPS_INLINE_LAMBDA {
              return is_inside || patches.Has(row + i, column + j)
                         ? LoadAs<V>(corner + i * width + j * channels + c)
                         : V{};
            },
            [&](int i, int j, V lanes) CPU_OPS_INLINE_LAMBDA {
              StoreAs(target + (i * kPatch + j) * points.stride, lanes);
            });
      }
    };
    if (patches.Has(row, column) && patches.Has(row + kSize - 1, column + kSize - 1)) {
      transform(std::true_type());
    } else {
      transform(std::false_type());
    }
  }
}

template <typename V>
CPU_OPS_INLINE void TransformInputs(const Patches& patches, const float* plane, int64_t begin,
                                    int64_t end, Points points) {
  TransformPatches<V, kInput, kPatch>(patches, plane, begin, end, points);
}

template <typename V>
CPU_OPS_INLINE void TransformGradients(const Patches& patches, const float* plane, int64_t begin,
                                       int64_t end, Points points) {
  TransformPatches<V, kOutput.Transposed(), kTile>(patches, plane, begin, end, points);
}

template <typename V>
CPU_OPS_INLINE void WriteOutputs(const Patches& patches, Points points, int64_t begin, int64_t end,
                                 const float* bias, bool sum, float* plane) {
  const int64_t channels = patches.plane.channels, width = patches.plane.width * channels;
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t row = patches.RowOf(tile), column = patches.ColumnOf(tile);
    float* const corner = plane + patches.OffsetOf(tile, row, column);
    for (int64_t c = 0; c < channels; c += kWidth<V>) {
      const V first = bias != nullptr ? LoadAs<V>(bias + c) : V{};
      Transform<V, kOutput, kTile, kPatch>(
          [&](int i, int j) CPU_OPS_INLINE_LAMBDA {
            return LoadAs<V>(points.data + (i * kPatch + j) * points.stride +
                             (tile - begin) * channels + c);
          },
          [&](int i, int j, V lanes) CPU_OPS_INLINE_LAMBDA {
            if (!patches.Has(row + i, column + j)) return;
            float* const y = corner + i * width + j * channels + c;
            StoreAs(y, sum ? LoadAs<V>(y) + lanes : lanes + first);
          });
    }
  }
}

// weights (3, 3, sources, targets); with `rotated` by half a turn.
template <typename V>
CPU_OPS_INLINE void TransformWeights(const float* weights, bool rotated, int64_t sources,
                                     int64_t targets, int64_t begin, int64_t end, Points points) {
  for (int64_t c = begin; c < end; ++c) {
    for (int64_t o = 0; o < targets; o += kWidth<V>) {
      const int64_t panel = o / kPanelColumns * kPanelColumns;
      const int64_t columns = std::min(kPanelColumns, targets - panel);
      Transform<V, kWeight, kPatch, kTaps>(
          [&](int i, int j) CPU_OPS_INLINE_LAMBDA {
            const int64_t tap = i * kTaps + j;
            return LoadAs<V>(weights + ((rotated ? 8 - tap : tap) * sources + c) * targets + o);
          },
          [&](int i, int j, V lanes) CPU_OPS_INLINE_LAMBDA {
            StoreAs(points.data + (i * kPatch + j) * points.stride + panel * sources + c * columns +
                        (o - panel),
                    lanes);
          });
    }
  }
}

template <typename V>
CPU_OPS_INLINE void WriteWeightGradients(Points points, int64_t sources, int64_t targets,
                                         int64_t begin, int64_t end, bool sum, float* dweight) {
  for (int64_t c = begin; c < end; ++c) {
    for (int64_t o = 0; o < targets; o += kWidth<V>) {
      Transform<V, kWeight.Transposed(), kTaps, kPatch>(
          [&](int i, int j) CPU_OPS_INLINE_LAMBDA {
            return LoadAs<V>(points.data + (i * kPatch + j) * points.stride + c * targets + o);
          },
          [&](int i, int j, V lanes) CPU_OPS_INLINE_LAMBDA {
            float* const dw = dweight + ((i * kTaps + j) * sources + c) * targets + o;
            StoreAs(dw, sum ? LoadAs<V>(dw) + lanes : lanes);
          });
    }
  }
}

// Of the tiles of `target`, the patches of `source`, with so much padding before them.
Patches PatchesOf(const Plane& source, const Plane& target, int64_t rows_before,
                  int64_t columns_before) noexcept {
  const auto tiles = [](int64_t positions) { return (positions + kTile - 1) / kTile; };
  return {source, rows_before, columns_before, tiles(target.height), tiles(target.width)};
}

Patches InputPatches(const ConvGeometry& conv) noexcept {
  return PatchesOf(conv.input, conv.output, conv.window.rows.before, conv.window.columns.before);
}

// body(point, panel) for all points and panels of so many columns, divided among the threads.
template <typename Body>
void ForProducts(int64_t multiplications, int64_t columns, const Body& body) noexcept {
  constexpr int64_t kGrain = 64 * 64 * 64;  // worth waking a thread for
  ForEachPart(PartCount(multiplications, kGrain), kPoints, 1,
              [&](int32_t, int64_t begin, int64_t end) {
                for (int64_t point = begin; point < end; ++point) {
                  for (int64_t panel = 0; panel < columns; panel += kPanelColumns) {
                    body(point, panel, std::min(kPanelColumns, columns - panel));
                  }
                }
              });
}

}  // namespace

// Both sides of a block stay in the second-level cache, as long as it has rows enough for tiles of
// registers, of the last of which most are used.
Winograd::Winograd(const ConvGeometry& geometry, int64_t samples) : conv_(geometry) {
  constexpr int64_t kBlockFloats = 192 * 1024;
  const int64_t tile = kPoints * (conv_.input.channels + conv_.output.channels);
  block_ = std::max<int64_t>(kBlockFloats / tile / MaxTileRows(), 4) * MaxTileRows();
  const int64_t most =
      std::max(InputPatches(conv_).count(), PatchesOf(conv_.output, conv_.input, 0, 0).count()) *
      samples;
  block_ = std::min(block_, most);
}

// Transforming the weights takes as long as multiplying so many tiles by them.
bool Winograd::Pays(const ConvGeometry& conv, int64_t samples) {
  const auto fits = [](const Window& axis) {
    return axis.kernel == kTaps && axis.stride == 1 && axis.dilation == 1 && axis.before < kTaps;
  };
  if (conv.groups != 1 || !fits(conv.window.rows) || !fits(conv.window.columns)) return false;
  if (conv.input.channels % kLanes != 0 || conv.output.channels % kLanes != 0) return false;
  const auto met = [](const Window& axis, int64_t inputs, int64_t outputs) {
    int64_t taps = 0;
    for (int64_t i = 0; i < outputs; ++i) taps += axis.Taps(i, inputs).size();
    return taps;
  };
  const int64_t plain = met(conv.window.rows, conv.input.height, conv.output.height) *
                        met(conv.window.columns, conv.input.width, conv.output.width);
  constexpr int64_t kWeightTiles = 20;
  return plain * samples > kPoints * (InputPatches(conv).count() * samples + kWeightTiles);
}

size_t Winograd::workspace_bytes() const noexcept {
  const int64_t c = conv_.input.channels, o = conv_.output.channels;
  const int64_t points = PointStride(c, o) + PointStride(block_, c) + PointStride(block_, o);
  return static_cast<size_t>(kPoints * points + conv_.weights()) * sizeof(float);
}

Winograd::Workspace Winograd::Divide(void* workspace) const noexcept {
  const int64_t c = conv_.input.channels, o = conv_.output.channels;
  Workspace parts = {.weights = static_cast<float*>(workspace)};
  parts.swapped = parts.weights + kPoints * PointStride(c, o);
  parts.inputs = parts.swapped + conv_.weights();
  parts.outputs = parts.inputs + kPoints * PointStride(block_, c);
  return parts;
}

void Winograd::Run(ConvPass::Direction direction, const ConvPass::Call& call) const noexcept {
  const bool forward = direction == ConvPass::Direction::kForward;
  const Plane &source = forward ? conv_.input : conv_.output,
              &target = forward ? conv_.output : conv_.input;
  const int64_t sources = source.channels, targets = target.channels;
  const kit::PlaneWindow& window = conv_.window;
  const Patches read = forward ? InputPatches(conv_)
                               : PatchesOf(source, target, kTaps - 1 - window.rows.before,
                                           kTaps - 1 - window.columns.before);
  const Patches written = PatchesOf(target, target, 0, 0);
  const Workspace parts = Divide(call.workspace);
  const Points weights = {parts.weights, PointStride(sources, targets)};
  const Points from = {forward ? parts.inputs : parts.outputs, PointStride(block_, sources)};
  const Points to = {forward ? parts.outputs : parts.inputs, PointStride(block_, targets)};
  if (!forward) {
    for (int64_t tap = 0; tap < kTaps * kTaps; ++tap) {
      const int64_t first = tap * sources * targets;
      Transpose({call.weight + first, sources}, targets, sources, {parts.swapped + first, targets});
    }
  }
  ForRows(sources, kPoints * targets, [&](int64_t begin, int64_t end) {
    CPU_OPS_RUN(TransformWeights, forward ? call.weight : parts.swapped, !forward, sources, targets,
                begin, end, weights);
  });
  const int64_t tiles = read.count() * call.samples;
  for (int64_t first = 0; first < tiles; first += block_) {
    const int64_t count = std::min(block_, tiles - first);
    ForRows(count, kPoints * sources, [&](int64_t begin, int64_t end) {
      CPU_OPS_RUN(TransformInputs, read, call.source, first + begin, first + end,
                  {from.data + begin * sources, from.stride});
    });
    ForProducts(kPoints * count * sources * targets, targets,
                [&](int64_t point, int64_t panel, int64_t columns) {
                  MultiplyPanel({.source = from.data + point * from.stride,
                                 .target = to.data + point * to.stride + panel,
                                 .tiled = {count, sources, targets},
                                 .length = sources,
                                 .panel = weights.data + point * weights.stride + panel * sources,
                                 .panel_stride = columns,
                                 .columns = columns});
                });
    ForRows(count, kPoints * targets, [&](int64_t begin, int64_t end) {
      CPU_OPS_RUN(WriteOutputs, written, {to.data + begin * targets, to.stride}, first + begin,
                  first + end, call.bias, call.sum, call.target);
    });
  }
}

void Winograd::AddWeights(const ConvWeightPass::Call& call) const noexcept {
  const int64_t c = conv_.input.channels, o = conv_.output.channels;
  const Patches inputs = InputPatches(conv_), outputs = PatchesOf(conv_.output, conv_.output, 0, 0);
  const Workspace parts = Divide(call.workspace);
  const Points x = {parts.inputs, PointStride(block_, c)};
  const Points dy = {parts.outputs, PointStride(block_, o)};
  const Points dweight = {parts.weights, PointStride(c, o)};
  const int64_t tiles = inputs.count() * call.samples;
  for (int64_t first = 0; first < tiles; first += block_) {
    const int64_t count = std::min(block_, tiles - first);
    ForRows(count, kPoints * (c + o), [&](int64_t begin, int64_t end) {
      CPU_OPS_RUN(TransformInputs, inputs, call.x, first + begin, first + end,
                  {x.data + begin * c, x.stride});
      CPU_OPS_RUN(TransformGradients, outputs, call.dy, first + begin, first + end,
                  {dy.data + begin * o, dy.stride});
    });
    ForProducts(kPoints * count * c * o, o, [&](int64_t point, int64_t panel, int64_t columns) {
      AddOuterProducts({.source = x.data + point * x.stride,
                        .target = dy.data + point * dy.stride + panel,
                        .loops = {{}, {}, {count, c, o}},
                        .result = dweight.data + point * dweight.stride + panel,
                        .result_stride = o,
                        .channels = c,
                        .columns = columns,
                        .sum = first > 0});
    });
  }
  ForRows(c, kPoints * o, [&](int64_t begin, int64_t end) {
    CPU_OPS_RUN(WriteWeightGradients, dweight, c, o, begin, end, call.sum, call.dweight);
  });
}

}  // namespace engine::cpu_ops
