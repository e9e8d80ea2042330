// The sum over targets of -log softmax(logits)[target], their number, and how many are the first
// largest logit. Saved for backward: log(sum(exp(logits))) of each row, so that it reads the logits
// once and writes the gradient.
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "cpu_op.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

constexpr int32_t kIgnored = -1;  // a target that counts for nothing

struct RowLoss {
  float log_sum;  // log(sum(exp(x)))
  float loss;     // log_sum - x[target], without that cancellation
  bool correct;   // x[target] is the first of the largest
};

CPU_OPS_KERNEL void LossOfRow(const float* x, int64_t width, int32_t target, RowLoss* row) {
  const float infinity = std::numeric_limits<float>::infinity();
  Float16 largest_lanes = Float16{} - infinity;
  for (int64_t i = 0; i < width; i += kLanes) {
    largest_lanes = Larger(largest_lanes, Load(x + i, LanesAt(i, width), -infinity));
  }
  const float largest = Largest(largest_lanes);
  Float16 sums = {};
  for (int64_t i = 0; i < width; i += kLanes) {
    sums += Exp(Load(x + i, LanesAt(i, width), -infinity) - largest);
  }
  bool first = x[target] == largest;
  for (int64_t i = 0; first && i < target; ++i) first = x[i] != largest;
  const float log_of_sum = std::log(Sum(sums));
  *row = {largest + log_of_sum, (largest - x[target]) + log_of_sum, first};
}

// dx = scale * (softmax(x) - onehot(target)), written or added.
CPU_OPS_KERNEL void LossGradient(const float* x, int64_t width, int32_t target, float log_sum,
                                 float scale, bool sum, float* dx) {
  if (sum) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dx[i] += scale * Exp(x[i] - log_sum);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dx[i] = scale * Exp(x[i] - log_sum);
  }
  dx[target] -= scale;
}

// What a range of rows adds to the loss.
struct Tally {
  double loss = 0;
  int64_t targets = 0;
  int64_t correct = 0;
};

class SoftmaxCrossEntropyOp final : public CpuOp {
 public:
  using CpuOp::CpuOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferSoftmaxCrossEntropy(Inferring(inputs, signature)));
    signature->saved_bytes = inputs[kTargets].shape.Count() * static_cast<int64_t>(sizeof(float));
    signature->workspace_bytes = threads() * static_cast<int64_t>(sizeof(Tally));
    return {};
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    const TensorView& targets = call.inputs[kTargets];
    const int64_t width = call.inputs[kLogits].shape[-1];
    ENGINE_RETURN_IF_ERROR(CheckTargets(targets, width));
    const float* logits = call.inputs[kLogits].f32();
    auto* tallies = static_cast<Tally*>(call.workspace);
    const int32_t parts = PartCount(targets.count() * width, kElementGrain);
    ForEachPart(parts, targets.count(), 1, [&](int32_t part, int64_t begin, int64_t end) {
      Tally tally;
      for (int64_t row = begin; row < end; ++row) {
        Count(logits + row * width, width, targets.i32()[row], Saved(call, row), &tally);
      }
      tallies[part] = tally;
    });
    // In doubles and in the order of parts: the same bits in every run.
    Tally total;
    for (int32_t part = 0; part < parts; ++part) {
      total.loss += tallies[part].loss;
      total.targets += tallies[part].targets;
      total.correct += tallies[part].correct;
    }
    float* y = call.outputs[0].f32();
    y[0] = static_cast<float>(total.loss);
    y[1] = static_cast<float>(total.targets);
    y[2] = static_cast<float>(total.correct);
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (!WantsGradient(call, kLogits)) return {};
    const int32_t* targets = call.inputs[kTargets].i32();
    const float* logits = call.inputs[kLogits].f32();
    const int64_t width = call.inputs[kLogits].shape[-1];
    float* gradient = call.input_grads[kLogits].f32();
    const float scale = call.output_grads[0].f32()[0];
    const bool sum = Accumulates(call, kLogits);
    ForRows(call.inputs[kTargets].count(), width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* dx = gradient + row * width;
        if (targets[row] != kIgnored) {
          LossGradient(logits + row * width, width, targets[row], *Saved(call, row), scale, sum,
                       dx);
        } else if (!sum) {
          std::memset(dx, 0, static_cast<size_t>(width) * sizeof(float));
        }
      }
    });
    return {};
  }

 private:
  static constexpr int32_t kLogits = 0, kTargets = 1;

  static float* Saved(const OpCall& call, int64_t row) noexcept {
    return call.saved == nullptr ? nullptr : static_cast<float*>(call.saved) + row;
  }

  static void Count(const float* logits, int64_t width, int32_t target, float* saved,
                    Tally* tally) noexcept {
    if (target == kIgnored) return;
    RowLoss row;
    LossOfRow(logits, width, target, &row);
    if (saved != nullptr) *saved = row.log_sum;
    tally->loss += static_cast<double>(row.loss);
    tally->targets += 1;
    tally->correct += row.correct ? 1 : 0;
  }

  Status CheckTargets(const TensorView& targets, int64_t classes) const noexcept {
    for (int64_t i = 0; i < targets.count(); ++i) {
      const int32_t target = targets.i32()[i];
      if (target == kIgnored || (target >= 0 && target < classes)) continue;
      return Status::Error(
          StatusCode::kBadData,
          "%s: target %d at position %lld is outside [0, %lld) and not %d (ignored)", name(),
          target, static_cast<long long>(i), static_cast<long long>(classes), kIgnored);
    }
    return {};
  }
};

}  // namespace

const OpFactory kMakeSoftmaxCrossEntropy = kit::NewOp<SoftmaxCrossEntropyOp>;

}  // namespace engine::cpu_ops
