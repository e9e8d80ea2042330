// What losses share (kit/loss_shapes.h): weights, and the three sums.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "cpu_op.h"
#include "kit/loss_shapes.h"
#include "parallel.h"

namespace engine::cpu_ops {

// What a range of targets adds to a loss.
struct Tally {
  double loss = 0, weights = 0, correct = 0;
};

class LossOp : public CpuOp {
 protected:
  LossOp(const OpContext& context, const kit::LossAttributes& given) noexcept
      : CpuOp(context), given_(given) {}

  void SetInputs(const kit::LossInputs& inputs, OpSignature* signature) noexcept {
    inputs_ = inputs;
    signature->workspace_bytes = threads() * static_cast<int64_t>(sizeof(Tally));
  }

  // kBadData unless weights of samples are numbers from 0 on: their sum divides.
  Status CheckSampleWeights(const OpCall& call) const noexcept {
    if (inputs_.sample_weights == 0) return {};
    const TensorView& weights = call.inputs[inputs_.sample_weights];
    for (int64_t i = 0; i < weights.count(); ++i) {
      if (weights.f32()[i] >= 0) continue;
      return Status::Error(StatusCode::kBadData,
                           "%s: a sample weight of %g at position %lld; it has to be at least 0",
                           name(), static_cast<double>(weights.f32()[i]),
                           static_cast<long long>(i));
    }
    return {};
  }

  // Of the sample of target `i`.
  float SampleWeight(const OpCall& call, int64_t i) const noexcept {
    if (inputs_.sample_weights == 0) return 1;
    return call.inputs[inputs_.sample_weights].f32()[i / inputs_.targets_per_weight];
  }
  // Null: all are 1.
  const float* ClassWeights(const OpCall& call) const noexcept {
    return inputs_.class_weights == 0 ? nullptr : call.inputs[inputs_.class_weights].f32();
  }

  // The gradient that arrives, of the sum over targets.
  float Scale(const OpCall& call) const noexcept {
    return call.output_grads[0].f32()[0] * given_.weight;
  }

  // Output 0 from body(begin, end, tally) over parts of `targets`, each of `width` elements: in
  // doubles and in the order of parts, so the same bits in every run.
  template <typename Body>
  void Sum(const OpCall& call, int64_t targets, int64_t width, const Body& body) const noexcept {
    auto* const tallies = static_cast<Tally*>(call.workspace);
    const int32_t parts = PartCount(targets * width, kElementGrain);
    ForEachPart(parts, targets, 1, [&](int32_t part, int64_t begin, int64_t end) {
      Tally tally;
      body(begin, end, &tally);
      tallies[part] = tally;
    });
    Tally total;
    for (int32_t part = 0; part < parts; ++part) {
      total.loss += tallies[part].loss;
      total.weights += tallies[part].weights;
      total.correct += tallies[part].correct;
    }
    if (given_.auxiliary) total.weights = total.correct = 0;
    const std::array sums = {given_.weight * total.loss, total.weights, total.correct};
    std::ranges::transform(sums, call.outputs[0].f32(),
                           [](double sum) { return static_cast<float>(sum); });
  }

 private:
  const kit::LossAttributes given_;
  kit::LossInputs inputs_;
};

}  // namespace engine::cpu_ops
