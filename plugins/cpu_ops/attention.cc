// Self-attention over qkv (B, T, 3C): queries, keys and values side by side, each cut into heads of
// C / heads columns (the layout of GPT-2). Saved for backward: log-sum-exp of each row of scores,
// (B, heads, T).
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "cpu_op.h"
#include "parallel.h"
#include "simd.h"
#include "small_gemm.h"

namespace engine::cpu_ops {
namespace {

// q, k and v are (length, size) each.
struct AttentionHead {
  RowMatrix q, k, v;
  int64_t length;
  int64_t size;
  float scale;  // of q k^T before the softmax
  bool causal;  // position i looks at 0..i only
};

struct AttentionGradients {
  RowTarget dq, dk, dv;
  bool sum;  // add to them
};

// Rows of scores kept for the gradients of k and v; a multiple of kTileRows.
constexpr int64_t kQueryBlock = 64;

constexpr int64_t Padded(int64_t columns) noexcept {
  return (columns + kLanes - 1) / kLanes * kLanes;
}

// The tile of scores of queries [first, first + rows): rows <= kTileRows, `columns` keys with
// padding. When causal, keys after the last query are not even computed.
struct ScoreTile {
  int64_t first;
  int64_t rows;
  int64_t columns;
  int64_t stride;  // between rows of scores
  int64_t length;
  float scale;
  bool causal;

  ScoreTile(const AttentionHead& head, int64_t begin, int64_t end) noexcept
      : first(begin),
        rows(std::min(kTileRows, end - begin)),
        columns(Padded(head.causal ? first + rows : head.length)),
        stride(Padded(head.length)),
        length(head.length),
        scale(head.scale),
        causal(head.causal) {}

  int64_t keys() const noexcept { return std::min(columns, length); }
  int64_t visible(int64_t row) const noexcept { return causal ? first + row + 1 : length; }
};

// Keys that a row does not see get a score of -infinity, of which the exponential is 0; so the
// loops over rows run over whole vectors.
CPU_OPS_INLINE void Mask(const ScoreTile& tile, int64_t row, float* scores) noexcept {
  constexpr Float16 kIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int64_t visible = tile.visible(row);
  for (int64_t j = visible / kLanes * kLanes; j < tile.columns; j += kLanes) {
    const auto seen = static_cast<float>(visible - j);
    const Float16 hidden = Float16{} - std::numeric_limits<float>::infinity();
    Store(scores + j, kIndex < seen ? Load(scores + j) : hidden);
  }
}

// scores -> exp(scale * (score - largest)); inverse_sums[row] = 1 / their sum.
CPU_OPS_KERNEL void ExponentiateRows(const ScoreTile& tile, float* scores, float* inverse_sums,
                                     float* log_sums) {
  for (int64_t row = 0; row < tile.rows; ++row, scores += tile.stride) {
    Mask(tile, row, scores);
    Float16 largest_lanes = Load(scores);
    for (int64_t j = kLanes; j < tile.columns; j += kLanes) {
      largest_lanes = Larger(largest_lanes, Load(scores + j));
    }
    const float largest = Largest(largest_lanes);
    Float16 sums = {};
    for (int64_t j = 0; j < tile.columns; j += kLanes) {
      const Float16 exponentials = Exp(tile.scale * (Load(scores + j) - largest));
      Store(scores + j, exponentials);
      sums += exponentials;
    }
    const float sum = Sum(sums);
    inverse_sums[row] = 1.0f / sum;
    if (log_sums != nullptr) log_sums[tile.first + row] = tile.scale * largest + std::log(sum);
  }
}

CPU_OPS_KERNEL void ScaleRows(int64_t rows, int64_t width, const float* factors, RowTarget y) {
  for (int64_t row = 0; row < rows; ++row) {
    float* values = y.data + row * y.row_stride;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) values[j] *= factors[row];
  }
}

// scores -> probabilities p, and dp (gradients of p) -> gradients of the scores:
//   ds = scale * p * (dp - sum(p * dp)).
CPU_OPS_KERNEL void SoftmaxGradientRows(const ScoreTile& tile, const float* log_sums, float* scores,
                                        float* dp) {
  for (int64_t row = 0; row < tile.rows; ++row, scores += tile.stride, dp += tile.stride) {
    Mask(tile, row, scores);
    const float log_sum = log_sums[tile.first + row];
    Float16 dots = {};
    for (int64_t j = 0; j < tile.columns; j += kLanes) {
      const Float16 p = Exp(tile.scale * Load(scores + j) - log_sum);
      Store(scores + j, p);
      dots += p * Load(dp + j);
    }
    const float dot = Sum(dots);
    for (int64_t j = 0; j < tile.columns; j += kLanes) {
      Store(dp + j, tile.scale * Load(scores + j) * (Load(dp + j) - dot));
    }
  }
}

RowMatrix Row(RowMatrix matrix, int64_t row) noexcept {
  return {matrix.data + row * matrix.row_stride, matrix.row_stride};
}

RowTarget Row(RowTarget matrix, int64_t row) noexcept {
  return {matrix.data + row * matrix.row_stride, matrix.row_stride};
}

StridedMatrix Strided(RowMatrix matrix) noexcept {
  return {matrix.data, matrix.row_stride, 1};
}

// Gradients of k and v from queries [begin, end), whose p and ds are given.
void KeyGradients(const AttentionHead& head, RowMatrix dy, int64_t begin, int64_t end,
                  const float* p, const float* ds, const AttentionGradients& gradients) noexcept {
  const int64_t stride = Padded(head.length);
  const int64_t keys = head.causal ? end : head.length;
  for (int64_t key = 0; key < keys; key += kTileRows) {
    const int64_t rows = std::min(kTileRows, keys - key);
    const int64_t first = head.causal ? std::max(begin, key) : begin;  // query that sees the keys
    const bool sum = gradients.sum || begin > (head.causal ? key : 0);
    const int64_t offset = (first - begin) * stride + key;
    SmallGemm(rows, head.size, end - first, {p + offset, 1, stride}, Row(dy, first),
              Row(gradients.dv, key), sum);
    SmallGemm(rows, head.size, end - first, {ds + offset, 1, stride}, Row(head.q, first),
              Row(gradients.dk, key), sum);
  }
}

// Floats of scratch that one call needs.
int64_t AttentionScratch(int64_t length, int64_t size) noexcept {
  return Padded(length) * 2 * (size + kQueryBlock);
}

// y (length, size) = softmax(scale q k^T) v. log_sums (length, or null) becomes the logarithm of
// the softmax's denominators: all that backward needs besides the inputs (Dao et al.,
// arXiv:2205.14135), where saved probabilities would take length^2. Rows of y are divided by their
// sums last: the probabilities themselves are never needed.
void AttentionForward(const AttentionHead& head, RowTarget y, float* log_sums,
                      float* scratch) noexcept {
  const int64_t stride = Padded(head.length);
  float* k_transposed = scratch;
  float* scores = k_transposed + head.size * stride;
  Transpose(head.k, head.length, head.size, k_transposed, stride);
  for (int64_t query = 0; query < head.length; query += kTileRows) {
    const ScoreTile tile(head, query, head.length);
    float inverse_sums[kTileRows];
    SmallGemm(tile.rows, tile.columns, head.size, Strided(Row(head.q, query)),
              {k_transposed, stride}, {scores, stride}, false);
    ExponentiateRows(tile, scores, inverse_sums, log_sums);
    SmallGemm(tile.rows, head.size, tile.keys(), {scores, stride, 1}, head.v, Row(y, query), false);
    ScaleRows(tile.rows, head.size, inverse_sums, Row(y, query));
  }
}

// Scratch: k and v transposed, then p and ds of a block of queries, whose rows are `stride` apart.
void AttentionBackward(const AttentionHead& head, RowMatrix dy, const float* log_sums,
                       const AttentionGradients& gradients, float* scratch) noexcept {
  const int64_t stride = Padded(head.length);
  float* k_transposed = scratch;
  float* v_transposed = k_transposed + head.size * stride;
  float* p = v_transposed + head.size * stride;
  float* ds = p + kQueryBlock * stride;
  Transpose(head.k, head.length, head.size, k_transposed, stride);
  Transpose(head.v, head.length, head.size, v_transposed, stride);
  for (int64_t begin = 0; begin < head.length; begin += kQueryBlock) {
    const int64_t end = std::min(begin + kQueryBlock, head.length);
    for (int64_t query = begin; query < end; query += kTileRows) {
      const ScoreTile tile(head, query, end);
      float* tile_p = p + (query - begin) * stride;
      float* tile_ds = ds + (query - begin) * stride;
      SmallGemm(tile.rows, tile.columns, head.size, Strided(Row(head.q, query)),
                {k_transposed, stride}, {tile_p, stride}, false);
      SmallGemm(tile.rows, tile.columns, head.size, Strided(Row(dy, query)), {v_transposed, stride},
                {tile_ds, stride}, false);
      SoftmaxGradientRows(tile, log_sums, tile_p, tile_ds);
      SmallGemm(tile.rows, head.size, tile.keys(), {tile_ds, stride, 1}, head.k,
                Row(gradients.dq, query), gradients.sum);
    }
    KeyGradients(head, dy, begin, end, p, ds, gradients);
  }
}

class AttentionOp final : public CpuOp {
 public:
  AttentionOp(const OpContext& context, const Options& attributes) noexcept
      : CpuOp(context), heads_(attributes.Int("heads")), causal_(attributes.Bool("causal")) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferAttention(Inferring(inputs, signature), heads_));
    const Shape& y = signature->outputs[0].shape;
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    signature->saved_bytes = y[0] * heads_ * y[1] * kFloat;
    signature->workspace_bytes = threads() * AttentionScratch(y[1], y[2] / heads_) * kFloat;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    const TensorView& y = call.outputs[0];
    ForEachHead(call, [&](int64_t sample, int64_t index, float* scratch) {
      const int64_t width = y.shape[2];
      const RowTarget target = {y.f32() + Offset(y, sample) + index * (width / heads_), width};
      AttentionForward(Head(call.inputs[0], sample, index), target, LogSums(call, sample, index),
                       scratch);
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView& dy = call.output_grads[0];
    ForEachHead(call, [&](int64_t sample, int64_t index, float* scratch) {
      const int64_t width = dy.shape[2], size = width / heads_;
      float* dqkv = call.input_grads[0].f32() + Offset(call.input_grads[0], sample) + index * size;
      const AttentionGradients gradients = {.dq = {dqkv, 3 * width},
                                            .dk = {dqkv + width, 3 * width},
                                            .dv = {dqkv + 2 * width, 3 * width},
                                            .sum = Accumulates(call, 0)};
      AttentionBackward(Head(call.inputs[0], sample, index),
                        {dy.f32() + Offset(dy, sample) + index * size, width},
                        LogSums(call, sample, index), gradients, scratch);
    });
    return {};
  }

 private:
  static int64_t Offset(const TensorView& tensor, int64_t sample) noexcept {
    return sample * tensor.shape.Count(1);
  }

  AttentionHead Head(const TensorView& qkv, int64_t sample, int64_t index) const noexcept {
    const int64_t width = qkv.shape[2] / 3, size = width / heads_;
    const float* q = qkv.f32() + Offset(qkv, sample) + index * size;
    return {.q = {q, 3 * width},
            .k = {q + width, 3 * width},
            .v = {q + 2 * width, 3 * width},
            .length = qkv.shape[1],
            .size = size,
            .scale = 1.0f / std::sqrt(static_cast<float>(size)),
            .causal = causal_};
  }

  float* LogSums(const OpCall& call, int64_t sample, int64_t index) const noexcept {
    if (call.saved == nullptr) return nullptr;
    const int64_t length = call.inputs[0].shape[1];
    return static_cast<float*>(call.saved) + (sample * heads_ + index) * length;
  }

  // body(sample, head index, scratch of the thread) for every head of every sample.
  template <typename Body>
  void ForEachHead(const OpCall& call, const Body& body) const noexcept {
    const Shape& shape = call.inputs[0].shape;
    const int64_t size = shape[2] / 3 / heads_;
    const int64_t scratch = AttentionScratch(shape[1], size);
    const int64_t count = shape[0] * heads_;
    const int64_t work = shape[1] * shape[1] * size;
    // A head is one thread's: its sums have one order, and no two threads write one row of dqkv.
    const int32_t parts = PartCount(count, kWorkGrain / std::max<int64_t>(work, 1));
    ForEachPart(parts, count, 1, [&](int32_t part, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        body(i / heads_, i % heads_, static_cast<float*>(call.workspace) + part * scratch);
      }
    });
  }

  // Multiply-adds that are worth a thread.
  static constexpr int64_t kWorkGrain = 1 << 18;

  const int64_t heads_;
  const bool causal_;
};

}  // namespace

const OpFactory kMakeAttention = kit::NewOp<AttentionOp>;

}  // namespace engine::cpu_ops
