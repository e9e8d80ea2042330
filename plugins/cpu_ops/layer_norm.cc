// layer_norm: y = (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dimension (Ba,
// Kiros and Hinton, arXiv:1607.06450). rms_norm: the same around 0 and without a bias (Zhang and
// Sennrich, arXiv:1910.07467). Saved for backward: {mean, 1 / deviation} of each row.
#include <cmath>
#include <cstring>

#include "cpu_op.h"
#include "kit/array_op_shapes.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

struct RowStatistics {
  float mean;
  float inverse_deviation;
};

template <typename T>
struct ForwardRows {
  const T* x;
  const float* weight;
  const float* bias;  // null: around 0
  T* y;
  RowStatistics* statistics;  // or null
  int64_t width;
  float epsilon;
};

// Two passes for the statistics, as the difference of two large sums would cancel; the row is in
// the first-level cache by then.
template <typename V, typename T>
CPU_OPS_INLINE RowStatistics StatisticsOf(const T* x, int64_t width, float epsilon,
                                          bool around_0) noexcept {
  V sums = {};
  for (int64_t i = 0; !around_0 && i < width; i += kWidth<V>)
    sums += LoadAs<V>(x + i, LanesAt<V>(i, width));
  const float mean = Sum(sums) / static_cast<float>(width);
  V squares = {};
  for (int64_t i = 0; i < width; i += kWidth<V>) {
    const V difference = LoadAs<V>(x + i, LanesAt<V>(i, width), mean) - mean;
    squares += difference * difference;
  }
  return {mean, 1.0f / std::sqrt(Sum(squares) / static_cast<float>(width) + epsilon)};
}

template <typename V, typename T>
CPU_OPS_INLINE void Normalize(const ForwardRows<T>& rows, int64_t begin, int64_t end) {
  const int64_t width = rows.width;
  const float* weight = rows.weight;
  const float* bias = rows.bias;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = rows.x + row * width;
    T* y = rows.y + row * width;
    const RowStatistics statistics = StatisticsOf<V>(x, width, rows.epsilon, bias == nullptr);
    const float mean = statistics.mean, scale = statistics.inverse_deviation;
    if (bias == nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) y[i] = x[i] * scale * weight[i];
    } else {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
    }
    if (rows.statistics != nullptr) rows.statistics[row] = statistics;
  }
}

template <typename T>
struct BackwardRows {
  const T* x;
  const float* weight;
  const T* dy;
  const RowStatistics* statistics;
  T* dx;     // or null
  bool sum;  // add to dx
  bool around_0;
  int64_t width;
};

// dx of one row: with g = dy * weight and n = (x - mean) * scale,
//   dx = scale * (g - mean(g) - n * mean(g * n)),  around 0 without mean(g).
template <typename V, typename T>
CPU_OPS_INLINE void InputGradient(const BackwardRows<T>& rows, const T* x, const T* dy,
                                  RowStatistics row, T* dx) noexcept {
  const int64_t width = rows.width;
  const float row_mean = row.mean, scale = row.inverse_deviation;
  V sums = {}, dots = {};
  for (int64_t i = 0; i < width; i += kWidth<V>) {
    const int64_t lanes = LanesAt<V>(i, width);
    const V g = LoadAs<V>(dy + i, lanes) * LoadAs<V>(rows.weight + i, lanes);
    sums += g;
    dots += g * (LoadAs<V>(x + i, lanes) - row_mean);
  }
  const float mean = rows.around_0 ? 0.0f : Sum(sums) / static_cast<float>(width);
  const float slope = Sum(dots) * scale / static_cast<float>(width);
  for (int64_t i = 0; i < width; i += kWidth<V>) {
    const int64_t lanes = LanesAt<V>(i, width);
    const V g = LoadAs<V>(dy + i, lanes) * LoadAs<V>(rows.weight + i, lanes);
    const V n = (LoadAs<V>(x + i, lanes) - row_mean) * scale;
    V gradient = scale * (g - mean - n * slope);
    if (rows.sum) gradient += LoadAs<V>(dx + i, lanes);
    StoreAs(dx + i, gradient, lanes);
  }
}

// Rows [begin, end): dx, and onto `dweight` and `dbias` (width each; null when not wanted) their
// sums over these rows.
template <typename V, typename T>
CPU_OPS_INLINE void NormalizeBackward(const BackwardRows<T>& rows, int64_t begin, int64_t end,
                                      float* dweight, float* dbias) {
  const int64_t width = rows.width;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = rows.x + row * width;
    const T* dy = rows.dy + row * width;
    const RowStatistics statistics = rows.statistics[row];
    if (dweight != nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const float gradient = dy[i];
        dweight[i] += gradient * ((x[i] - statistics.mean) * statistics.inverse_deviation);
        dbias[i] += gradient;
      }
    }
    if (rows.dx != nullptr) InputGradient<V>(rows, x, dy, statistics, rows.dx + row * width);
  }
}

// kHasBias: layer_norm, else rms_norm.
template <bool kHasBias>
class NormOp final : public CpuOp {
 public:
  NormOp(const OpContext& context, const Options& attributes) noexcept
      : CpuOp(context), epsilon_(static_cast<float>(attributes.Float("epsilon"))) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    ENGINE_RETURN_IF_ERROR(kHasBias ? kit::InferLayerNorm(inference)
                                    : kit::InferRmsNorm(inference));
    const Shape& x = inputs[kX].shape;
    signature->saved_bytes = x.Count(0, -1) * static_cast<int64_t>(sizeof(RowStatistics));
    signature->workspace_bytes = threads() * PartialBytes(x[-1]);
    return {};
  }
  bool TakesBFloat16() const noexcept override { return true; }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    WithElement(activation(), [&]<typename T>(T) { ForwardOf<T>(call); });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    WithElement(activation(), [&]<typename T>(T) { BackwardOf<T>(call); });
    return {};
  }

  template <typename T>
  void ForwardOf(const OpCall& call) const noexcept {
    const Shape& shape = call.inputs[kX].shape;
    const ForwardRows<T> rows = {.x = As<const T>(call.inputs[kX]),
                                 .weight = call.inputs[kWeight].f32(),
                                 .bias = kHasBias ? call.inputs[kBias].f32() : nullptr,
                                 .y = As<T>(call.outputs[0]),
                                 .statistics = static_cast<RowStatistics*>(call.saved),
                                 .width = shape[-1],
                                 .epsilon = epsilon_};
    ForRows(shape.Count(0, -1), shape[-1],
            [&](int64_t begin, int64_t end) { CPU_OPS_RUN(Normalize, rows, begin, end); });
  }

  template <typename T>
  void BackwardOf(const OpCall& call) const noexcept {
    const Shape& shape = call.inputs[kX].shape;
    const BackwardRows<T> rows = {
        .x = As<const T>(call.inputs[kX]),
        .weight = call.inputs[kWeight].f32(),
        .dy = As<const T>(call.output_grads[0]),
        .statistics = static_cast<const RowStatistics*>(call.saved),
        .dx = WantsGradient(call, kX) ? As<T>(call.input_grads[kX]) : nullptr,
        .sum = Accumulates(call, kX),
        .around_0 = !kHasBias,
        .width = shape[-1]};
    const bool parameters = WantsGradient(call, kWeight) || WantsGradient(call, kBias);
    const int64_t row_count = shape.Count(0, -1);
    const int32_t parts = PartCount(row_count * rows.width, kElementGrain);
    // Each part has partial sums of its own, which are added up in the order of parts.
    ForEachPart(parts, row_count, 1, [&](int32_t part, int64_t begin, int64_t end) {
      float* partial = nullptr;
      if (parameters) {
        partial = Partial(call.workspace, rows.width, part);
        std::memset(partial, 0, static_cast<size_t>(PartialBytes(rows.width)));
      }
      CPU_OPS_RUN(NormalizeBackward, rows, begin, end, partial,
                  parameters ? partial + PaddedWidth(rows.width) : nullptr);
    });
    AddPartials(call, kWeight, parts, 0);
    AddPartials(call, kBias, parts, PaddedWidth(rows.width));
  }

  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  // The workspace holds, per thread, a partial gradient of the weight and one of the bias.
  static int64_t PaddedWidth(int64_t width) noexcept { return (width + kLine - 1) / kLine * kLine; }
  static int64_t PartialBytes(int64_t width) noexcept {
    return 2 * PaddedWidth(width) * static_cast<int64_t>(sizeof(float));
  }
  static float* Partial(void* workspace, int64_t width, int32_t part) noexcept {
    return static_cast<float*>(workspace) + 2 * PaddedWidth(width) * part;
  }

  static void AddPartials(const OpCall& call, int32_t input, int32_t parts,
                          int64_t offset) noexcept {
    if (!WantsGradient(call, static_cast<size_t>(input))) return;
    const TensorView& gradient = call.input_grads[static_cast<size_t>(input)];
    const int64_t width = gradient.count();
    if (!Accumulates(call, input)) std::memset(gradient.data, 0, gradient.size_bytes());
    for (int32_t part = 0; part < parts; ++part) {
      const float* partial = Partial(call.workspace, width, part) + offset;
      for (int64_t i = 0; i < width; ++i) gradient.f32()[i] += partial[i];
    }
  }

  const float epsilon_;
};

}  // namespace

const OpFactory kMakeLayerNorm = kit::NewOp<NormOp<true>>;
const OpFactory kMakeRmsNorm = kit::NewOp<NormOp<false>>;

}  // namespace engine::cpu_ops
