#include "profile_layer.h"

#include <chrono>

#include "numbers.h"

namespace engine::profile_ops {
namespace {

constexpr uint32_t kInput = 1u << 0;
constexpr uint32_t kParameter = 1u << 1;

int64_t RowLength(const TensorView& view) noexcept {
  return view.shape[-1];
}

// gradient[i] (+)= rows * GradientAt(i)
void FillGradient(uint32_t key, float rows, bool accumulate, int64_t count,
                  float* gradient) noexcept {
  const auto size = static_cast<uint32_t>(count);
  if (accumulate) {
    for (uint32_t i = 0; i < size; ++i) gradient[i] += rows * GradientAt(key, i);
  } else {
    for (uint32_t i = 0; i < size; ++i) gradient[i] = rows * GradientAt(key, i);
  }
}

// Where the two share memory (OpSignature::passes_gradient) there is nothing to do.
void PassGradient(const TensorView& from, bool accumulate, const TensorView& to) noexcept {
  if (to.data == nullptr || to.data == from.data) return;
  for (int64_t i = 0; i < from.count(); ++i) {
    to.f32()[i] = accumulate ? to.f32()[i] + from.f32()[i] : from.f32()[i];
  }
}

}  // namespace

Status ProfileLayer::Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept {
  if (inputs.size() != 1 || inputs[0].dtype != DType::kFloat32 || inputs[0].shape.ndim < 2) {
    return Status::Error(StatusCode::kConfig,
                         "profile_layer: it needs one input of float32, such as data { synthetic { "
                         "shape: 2 classes: 2 } }");
  }
  signature->parameter_count = 1;
  signature->parameters[0].name = "weight";
  signature->parameters[0].shape = {settings_.parameters};
  signature->output_count = 1;
  signature->outputs[0] = inputs[0];
  signature->differentiable_inputs = kInput | kParameter;
  signature->accumulates = kInput | kParameter;
  signature->passes_gradient = kInput;
  signature->in_place_of = 0;
  signature->backward_reads_inputs = 0;
  signature->backward_reads_outputs = 0;
  return {};
}

Pacer::Clock::duration ProfileLayer::Duration(const OpCall& call, Pass pass) const noexcept {
  const double us = pass == Pass::kForward ? settings_.forward_us : settings_.backward_us;
  const uint64_t hash =
      Hash(call.seed, settings_.id, call.step, settings_.rank << 1 | static_cast<uint64_t>(pass));
  const double jittered = us * (1 + settings_.jitter * Symmetric(hash));
  return std::chrono::duration_cast<Pacer::Clock::duration>(
      std::chrono::duration<double, std::micro>(jittered));
}

Status ProfileLayer::Forward(const OpCall& call) noexcept {
  const auto start = Pacer::Clock::now();
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const auto position = Hash(call.seed, settings_.id, call.step) % settings_.parameters;
  const float w = call.inputs[1].f32()[position];
  const int64_t length = RowLength(x);
  for (int64_t i = 0; i < x.count(); ++i) {
    y.f32()[i] = x.f32()[i] + ((i % length) % 2 == 0 ? w : -w);
  }
  pacer_.Fill(start, Duration(call, Pass::kForward));
  return {};
}

Status ProfileLayer::Backward(const OpCall& call) noexcept {
  const auto start = Pacer::Clock::now();
  const TensorView& dy = call.output_grads[0];
  PassGradient(dy, (call.accumulate & kInput) != 0, call.input_grads[0]);
  if (call.input_grads[1].data != nullptr) {
    const auto key = static_cast<uint32_t>(Hash(call.seed, settings_.id, call.step));
    FillGradient(key, static_cast<float>(dy.shape.Count(0, -1)),
                 (call.accumulate & kParameter) != 0, settings_.parameters,
                 call.input_grads[1].f32());
  }
  pacer_.Fill(start, Duration(call, Pass::kBackward));
  return {};
}

}  // namespace engine::profile_ops
