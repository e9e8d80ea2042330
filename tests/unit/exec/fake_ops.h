// Small ops whose arithmetic is exact in float32 for small integers, so that results can be
// compared bit for bit whatever the order of work.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "app/model/graph_builder.h"
#include "tests/support/elements.h"

namespace engine::test {

inline void Put(const OpCall& call, int i, int64_t k, float value) {
  float* gradient = call.input_grads[i].f32();
  if (gradient == nullptr) return;
  gradient[k] = (call.accumulate >> i & 1u) != 0 ? gradient[k] + value : value;
}

// outputs[0] of each element, by `of(k)`.
template <typename Of>
Status FillOutput(const OpCall& call, const Of& of) {
  for (int64_t k = 0; k < call.outputs[0].count(); ++k) call.outputs[0].f32()[k] = of(k);
  return {};
}

// The gradient of input `i` for each element, by `of(k)`.
template <typename Of>
void PutEach(const OpCall& call, int i, const Of& of) {
  for (int64_t k = 0; k < call.output_grads[0].count(); ++k) Put(call, i, k, of(k));
}

// The gradient of input 1, a parameter of one sample's shape: sums of `of(k)` over the samples.
template <typename Of>
void PutSums(const OpCall& call, const Of& of) {
  const int64_t width = call.inputs[1].count();
  for (int64_t k = 0; k < width; ++k) {
    float sum = 0;
    for (int64_t j = k; j < call.output_grads[0].count(); j += width) sum += of(j);
    Put(call, 1, k, sum);
  }
}

// An op with one output like its first input, whose backward pass reads neither inputs nor outputs,
// but for what Declare changes.
class FakeOp : public OpBase {
 public:
  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept final {
    signature->output_count = 1;
    signature->outputs[0] = inputs[0];
    signature->backward_reads_inputs = signature->backward_reads_outputs = 0;
    Declare(inputs, signature);
    return {};
  }

 protected:
  virtual void Declare(Array<const TensorSpec> inputs, OpSignature* signature) noexcept = 0;
  // A parameter of one sample's shape.
  static void AddParameter(Array<const TensorSpec> inputs, const ParameterSpec& wanted,
                           OpSignature* signature) {
    signature->parameter_count = 1;
    signature->parameters[0] = wanted;
    signature->parameters[0].shape = {inputs[0].shape.Count(1)};
    signature->differentiable_inputs = 3;
  }
};

// y = x * w, elementwise, with a parameter w of one sample's shape. Adds to gradients in place if
// `accumulates`.
class ScaleOp : public FakeOp {
 public:
  explicit ScaleOp(bool accumulates = true) : accumulates_(accumulates) {}
  void Declare(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    AddParameter(inputs, {.name = "weight", .initializer = Initializer::kOnes, .decay = 1},
                 signature);
    signature->backward_reads_inputs = UINT32_MAX;
    signature->accumulates = accumulates_ ? 3 : 0;
  }
  Status Forward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &w = call.inputs[1];
    return FillOutput(call, [&](int64_t k) { return x.f32()[k] * w.f32()[k % w.count()]; });
  }
  Status Backward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &w = call.inputs[1];
    const float* const dy = call.output_grads[0].f32();
    PutSums(call, [&](int64_t k) { return dy[k] * x.f32()[k]; });
    PutEach(call, 0, [&](int64_t k) { return dy[k] * w.f32()[k % w.count()]; });
    return {};
  }

 private:
  const bool accumulates_;
};

// y = x + b, elementwise, with a parameter b, to whose gradient it can add. Passes its gradient on
// and works in place.
class ShiftOp final : public FakeOp {
 public:
  void Declare(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    AddParameter(inputs, {.name = "bias", .decay = 0}, signature);
    signature->accumulates = 2;
    signature->passes_gradient = 1;
    signature->in_place_of = 0;
  }
  Status Forward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &b = call.inputs[1];
    return FillOutput(call, [&](int64_t k) { return x.f32()[k] + b.f32()[k % b.count()]; });
  }
  Status Backward(const OpCall& call) noexcept override {
    const float* const dy = call.output_grads[0].f32();
    PutSums(call, [&](int64_t k) { return dy[k]; });
    if (call.input_grads[0].f32() != dy) PutEach(call, 0, [&](int64_t k) { return dy[k]; });
    return {};
  }
};

class AddOp final : public FakeOp {
 public:
  void Declare(Array<const TensorSpec>, OpSignature* signature) noexcept override {
    signature->differentiable_inputs = signature->passes_gradient = 3;
    signature->in_place_of = 0;
  }
  Status Forward(const OpCall& call) noexcept override {
    const TensorView &a = call.inputs[0], &b = call.inputs[1];
    return FillOutput(call, [&](int64_t k) { return a.f32()[k] + b.f32()[k]; });
  }
  Status Backward(const OpCall& call) noexcept override {
    const float* const dy = call.output_grads[0].f32();
    for (int i = 0; i < 2; ++i) {
      if (call.input_grads[i].f32() != dy) PutEach(call, i, [&](int64_t k) { return dy[k]; });
    }
    return {};
  }
};

// y = 2 * (sum of all inputs), whose gradients are all the same; one memory is written once. Adds
// to gradients in place if `accumulates`.
class DoubledSumOp final : public FakeOp {
 public:
  DoubledSumOp(bool shares, bool accumulates) : shares_(shares), accumulates_(accumulates) {}
  void Declare(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const uint32_t all = (1u << inputs.size()) - 1;
    signature->differentiable_inputs = all;
    signature->equal_gradients = shares_ ? all : 0;
    signature->accumulates = accumulates_ ? all : 0;
  }
  Status Forward(const OpCall& call) noexcept override {
    return FillOutput(call, [&](int64_t k) {
      float sum = 0;
      for (const TensorView& input : call.inputs) sum += input.f32()[k];
      return 2 * sum;
    });
  }
  Status Backward(const OpCall& call) noexcept override {
    std::set<void*> written;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (!written.insert(call.input_grads[i].data).second) continue;
      PutEach(call, static_cast<int>(i),
              [&](int64_t k) { return 2 * call.output_grads[0].f32()[k]; });
    }
    return {};
  }

 private:
  const bool shares_, accumulates_;
};

// A source of a parameter alone: y = w for every sample; x only gives the shape.
class ConstantOp final : public FakeOp {
 public:
  void Declare(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    AddParameter(inputs, {.name = "weight", .initializer = Initializer::kOnes}, signature);
    signature->differentiable_inputs = 2;
  }
  Status Forward(const OpCall& call) noexcept override {
    const TensorView& w = call.inputs[1];
    return FillOutput(call, [&](int64_t k) { return w.f32()[k % w.count()]; });
  }
  Status Backward(const OpCall& call) noexcept override {
    PutSums(call, [&](int64_t k) { return call.output_grads[0].f32()[k]; });
    return {};
  }
};

// y = x + numbers that depend on step and position in the batch of all ranks, as random ones would.
// Its backward pass expects the position of the forward pass before it.
class NoiseOp final : public FakeOp {
 public:
  void Declare(Array<const TensorSpec>, OpSignature* signature) noexcept override {
    signature->differentiable_inputs = 1;
  }
  Status Forward(const OpCall& call) noexcept override {
    const int64_t width = call.inputs[0].shape.Count(1);
    first_ = call.first_sample;
    return FillOutput(call, [&](int64_t k) {
      const auto position = first_ + static_cast<uint64_t>(k / width);
      const auto noise = static_cast<float>((position * 7 + call.step * 3) % 11);
      return call.inputs[0].f32()[k] + noise / 16;
    });
  }
  Status Backward(const OpCall& call) noexcept override {
    if (call.first_sample != first_) return Status::Error(StatusCode::kInternal, "another pass");
    PutEach(call, 0, [&](int64_t k) { return call.output_grads[0].f32()[k]; });
    return {};
  }

 private:
  uint64_t first_ = 0;
};

// y = x * bfloat16(w). On an accelerator it asks for the rounded copy, elsewhere it rounds itself.
class RoundedScaleOp final : public FakeOp {
 public:
  explicit RoundedScaleOp(bool reads_copy) : reads_copy_(reads_copy) {}
  void Declare(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    AddParameter(inputs,
                 {.name = "weight",
                  .initializer = Initializer::kNormal,
                  .scale = 0.7f,
                  .decay = 1,
                  .dtype = reads_copy_ ? DType::kBFloat16 : DType::kFloat32},
                 signature);
    signature->backward_reads_inputs = UINT32_MAX;
    signature->accumulates = 3;
  }
  Status Forward(const OpCall& call) noexcept override {
    return FillOutput(call, [&](int64_t k) { return call.inputs[0].f32()[k] * Weight(call, k); });
  }
  Status Backward(const OpCall& call) noexcept override {
    const float* const dy = call.output_grads[0].f32();
    PutSums(call, [&](int64_t k) { return dy[k] * call.inputs[0].f32()[k]; });
    PutEach(call, 0, [&](int64_t k) { return dy[k] * Weight(call, k); });
    return {};
  }

 private:
  float Weight(const OpCall& call, int64_t k) const {
    const TensorView& w = call.inputs[1];
    return FromBFloat16(reads_copy_ ? static_cast<const uint16_t*>(w.data)[k % w.count()]
                                    : ToBFloat16(w.f32()[k % w.count()]));
  }
  const bool reads_copy_;
};

constexpr int32_t kMasked = -100;

// loss = sum of logits * (target + 1); one target per element, of which masked ones do not count. Its
// backward pass reads what the forward pass has made.
class LossOp final : public OpBase {
 public:
  Status Infer(Array<const TensorSpec>, OpSignature* signature) noexcept override {
    signature->output_count = 1;
    signature->outputs[0] = {.shape = {3}};
    signature->differentiable_inputs = 1;
    signature->is_loss = 1;
    return {};
  }
  Status Forward(const OpCall& call) noexcept override {
    float* out = call.outputs[0].f32();
    out[0] = out[2] = 0;
    out[1] = Targets(call);
    for (int64_t k = 0; k < call.inputs[0].count(); ++k) {
      out[0] += call.inputs[0].f32()[k] * Weight(call, k);
    }
    return {};
  }
  Status Backward(const OpCall& call) noexcept override {
    if (call.outputs[0].f32()[1] != Targets(call)) {
      return Status::Error(StatusCode::kInternal, "the count of targets has changed");
    }
    for (int64_t k = 0; k < call.inputs[0].count(); ++k) {
      Put(call, 0, k, call.output_grads[0].f32()[0] * Weight(call, k));
    }
    return {};
  }

 private:
  static float Weight(const OpCall& call, int64_t k) {
    const int32_t target = call.inputs[1].i32()[k];
    return target == kMasked ? 0 : static_cast<float>(target + 1);
  }
  static float Targets(const OpCall& call) {
    const int32_t* const targets = call.inputs[1].i32();
    const int64_t count = call.inputs[0].count();
    return static_cast<float>(count - std::count(targets, targets + count, kMasked));
  }
};

class AccumulateOp final : public OpBase {
 public:
  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    signature->output_count = 1;
    signature->outputs[0] = inputs[0];
    return {};
  }
  Status Forward(const OpCall& call) noexcept override {
    float* const sum = call.outputs[0].f32();
    return FillOutput(call, [&](int64_t k) { return sum[k] + call.inputs[1].f32()[k]; });
  }
  Status Backward(const OpCall&) noexcept override {
    return Status::Error(StatusCode::kInternal, "accumulate has no backward");
  }
};

inline plugin::OpFactory FakeOps() {
  return [](const std::string& name,
            const std::vector<plugin::OwnedOption>&) -> Result<std::unique_ptr<Op>> {
    if (name == "scale") return std::unique_ptr<Op>(new ScaleOp(true));
    if (name == "scale_slow") return std::unique_ptr<Op>(new ScaleOp(false));
    if (name == "shift") return std::unique_ptr<Op>(new ShiftOp);
    if (name == "noise") return std::unique_ptr<Op>(new NoiseOp);
    if (name == "rounded") return std::unique_ptr<Op>(new RoundedScaleOp(true));
    if (name == "add") return std::unique_ptr<Op>(new AddOp);
    if (name == "doubled_sum") return std::unique_ptr<Op>(new DoubledSumOp(true, false));
    if (name == "doubled_sum_adds") return std::unique_ptr<Op>(new DoubledSumOp(true, true));
    if (name == "doubled_sum_apart") return std::unique_ptr<Op>(new DoubledSumOp(false, false));
    if (name == "constant") return std::unique_ptr<Op>(new ConstantOp);
    if (name == "loss") return std::unique_ptr<Op>(new LossOp);
    if (name == "accumulate") return std::unique_ptr<Op>(new AccumulateOp);
    return Status::Error(StatusCode::kConfig, "no op '%s'", name.c_str());
  };
}

}  // namespace engine::test
