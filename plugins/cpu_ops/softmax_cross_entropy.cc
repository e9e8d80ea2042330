// softmax_cross_entropy, as kit/loss_shapes.h says. Saved for backward: log(sum(exp(logits))) of each
// row, so that it reads the logits once and writes the gradient.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "loss.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

// log(sum(exp(x))) is the sum of the two, which are apart as a loss is without that cancellation:
// (largest - x[target]) + log_of_sum.
struct RowLoss {
  float largest, log_of_sum;
  bool correct;  // x[target] is the first of the largest
};

template <typename V, typename T>
CPU_OPS_INLINE void LossOfRow(const T* x, int64_t width, int32_t target, RowLoss* row) {
  const float infinity = std::numeric_limits<float>::infinity();
  V largest_lanes = V{} - infinity;
  for (int64_t i = 0; i < width; i += kWidth<V>) {
    largest_lanes = Larger(largest_lanes, LoadAs<V>(x + i, LanesAt<V>(i, width), -infinity));
  }
  const float largest = Largest(largest_lanes);
  V sums = {};
  for (int64_t i = 0; i < width; i += kWidth<V>) {
    sums += Exp(LoadAs<V>(x + i, LanesAt<V>(i, width), -infinity) - largest);
  }
  bool first = x[target] == largest;
  for (int64_t i = 0; first && i < target; ++i) first = x[i] != largest;
  *row = {largest, std::log(Sum(sums)), first};
}

// Sum over classes of w[c] (largest - x[c]); without `w` they are 1.
template <typename T>
double SumBelowLargest(const T* x, const float* w, int64_t width, float largest) noexcept {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += double{largest - x[i]} * (w != nullptr ? w[i] : 1.0f);
  return sum;
}

// dx = scale softmax(x), written or added.
template <typename T>
CPU_OPS_KERNEL void Probabilities(const T* x, int64_t width, float log_sum, float scale, bool sum,
                                  T* dx) {
  if (sum) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dx[i] += scale * Exp(x[i] - log_sum);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dx[i] = scale * Exp(x[i] - log_sum);
  }
}

class SoftmaxCrossEntropyOp final : public LossOp {
 public:
  SoftmaxCrossEntropyOp(const OpContext& context, const Options& attributes) noexcept
      : LossOp(context, kit::LossAttributes(attributes)), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_ASSIGN_OR_RETURN(const kit::LossInputs found,
                            kit::InferSoftmaxCrossEntropy(Inferring(inputs, signature)));
    SetInputs(found, signature);
    signature->saved_bytes = inputs[kTargets].shape.Count() * static_cast<int64_t>(sizeof(float));
    return {};
  }
  bool TakesBFloat16() const noexcept override { return true; }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    const TensorView& targets = call.inputs[kTargets];
    const int64_t width = call.inputs[kLogits].shape[-1];
    ENGINE_RETURN_IF_ERROR(CheckTargets(targets, width));
    ENGINE_RETURN_IF_ERROR(CheckSampleWeights(call));
    const Shares shares = SharesOf(call);
    Sum(call, targets.count(), width, [&](int64_t begin, int64_t end, Tally* tally) {
      WithElement(call.inputs[kLogits].dtype, [&]<typename T>(T) {
        for (int64_t row = begin; row < end; ++row) Count<T>(call, row, shares, tally);
      });
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (!WantsGradient(call, kLogits)) return {};
    WithElement(call.inputs[kLogits].dtype, [&]<typename T>(T) { BackwardOf<T>(call); });
    return {};
  }

  static constexpr int32_t kLogits = 0, kTargets = 1;

  // How a target's weight of 1 is shared out.
  struct Shares {
    const float* class_weights;
    float target;        // of the target itself, times its class weight
    float each;          // of every class, times its class weight; 0: no smoothing
    double all_weights;  // sum of class weights
  };

  Shares SharesOf(const OpCall& call) const noexcept {
    const int64_t width = call.inputs[kLogits].shape[-1];
    const float* const w = ClassWeights(call);
    const double all =
        w == nullptr ? static_cast<double>(width) : std::accumulate(w, w + width, 0.0);
    return {w, 1 - given_.label_smoothing, given_.label_smoothing / static_cast<float>(width), all};
  }

  bool Counts(const OpCall& call, int64_t row) const noexcept {
    return call.inputs[kTargets].i32()[row] != given_.ignore_index && SampleWeight(call, row) > 0;
  }

  template <typename T>
  void Count(const OpCall& call, int64_t row, const Shares& shares, Tally* tally) const noexcept {
    if (!Counts(call, row)) return;
    const int64_t width = call.inputs[kLogits].shape[-1];
    const T* const x = As<const T>(call.inputs[kLogits]) + row * width;
    const int32_t target = call.inputs[kTargets].i32()[row];
    const float* const w = shares.class_weights;
    RowLoss of;
    CPU_OPS_RUN(LossOfRow, x, width, target, &of);
    if (call.saved != nullptr) static_cast<float*>(call.saved)[row] = of.largest + of.log_of_sum;
    const double sample = SampleWeight(call, row), weight = w == nullptr ? 1.0f : w[target];
    double loss = shares.target * weight * ((of.largest - x[target]) + of.log_of_sum);
    if (shares.each > 0) {
      loss += shares.each *
              (SumBelowLargest(x, w, width, of.largest) + shares.all_weights * of.log_of_sum);
    }
    tally->loss += sample * loss;
    tally->weights += sample * weight;
    tally->correct += of.correct ? sample * weight : 0;
  }

  // Rows that do not count get zeros, as nothing else writes them.
  template <typename T>
  void BackwardOf(const OpCall& call) const noexcept {
    const int64_t width = call.inputs[kLogits].shape[-1];
    const Shares shares = SharesOf(call);
    ForRows(call.inputs[kTargets].count(), width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* const dx = As<T>(call.input_grads[kLogits]) + row * width;
        if (Counts(call, row)) {
          AddRow(call, row, shares, dx);
        } else if (!Accumulates(call, kLogits)) {
          std::memset(dx, 0, static_cast<size_t>(width) * sizeof(T));
        }
      }
    });
  }

  template <typename T>
  void AddRow(const OpCall& call, int64_t row, const Shares& shares, T* dx) const noexcept {
    const int64_t width = call.inputs[kLogits].shape[-1];
    const T* const x = As<const T>(call.inputs[kLogits]) + row * width;
    const int32_t target = call.inputs[kTargets].i32()[row];
    const float* const w = shares.class_weights;
    const float scale = Scale(call) * SampleWeight(call, row);
    const float own = shares.target * (w == nullptr ? 1.0f : w[target]);
    const float all = own + shares.each * static_cast<float>(shares.all_weights);
    const bool sum = Accumulates(call, kLogits);
    const float log_sum = static_cast<const float*>(call.saved)[row];
    // The target's, where one term takes most of the other away, is rounded once.
    const float of_target = sum ? dx[target] : T(0.0f);
    Probabilities(x, width, log_sum, scale * all, sum, dx);
    dx[target] = of_target + (scale * all * Exp(x[target] - log_sum) - scale * own);
    for (int64_t i = 0; shares.each > 0 && i < width; ++i) {
      dx[i] += -scale * shares.each * (w == nullptr ? 1.0f : w[i]);
    }
  }

  Status CheckTargets(const TensorView& targets, int64_t classes) const noexcept {
    for (int64_t i = 0; i < targets.count(); ++i) {
      const int32_t target = targets.i32()[i];
      if (target == given_.ignore_index || (target >= 0 && target < classes)) continue;
      return Status::Error(
          StatusCode::kBadData,
          "%s: target %d at position %lld is outside [0, %lld) and not %d (ignored)", name(),
          target, static_cast<long long>(i), static_cast<long long>(classes), given_.ignore_index);
    }
    return {};
  }

  const kit::SoftmaxCrossEntropyAttributes given_;
};

}  // namespace

const OpFactory kMakeSoftmaxCrossEntropy = kit::NewOp<SoftmaxCrossEntropyOp>;

}  // namespace engine::cpu_ops
