// Parts to build ops from, whatever the device. Compiled into the plugin that includes it and no
// part of the ABI: an op may as well be written without it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>

#include "engine/op.h"
#include "engine/status.h"

namespace engine::kit {

// "float32 (8, 128, 768)"
struct SpecText {
  char text[160];

  explicit SpecText(const TensorSpec& spec) noexcept {
    auto length = static_cast<size_t>(snprintf(text, sizeof text, "%s (", Name(spec.dtype)));
    for (int32_t i = 0; i < spec.shape.ndim; ++i) {
      length +=
          static_cast<size_t>(snprintf(text + length, sizeof text - length, "%s%lld",
                                       i > 0 ? ", " : "", static_cast<long long>(spec.shape[i])));
    }
    snprintf(text + length, sizeof text - length, ")");
  }
};

// kConfig unless op `name` got `count` inputs.
inline Status CheckInputCount(const char* name, Array<const TensorSpec> inputs,
                              size_t count) noexcept {
  if (inputs.size() == count) return {};
  return Status::Error(StatusCode::kConfig, "%s: got %zu inputs; it needs %zu", name, inputs.size(),
                       count);
}

// kConfig: what input `index` of op `name` is, and `need`, what it has to be.
inline Status InputError(const char* name, Array<const TensorSpec> inputs, size_t index,
                         const char* need) noexcept {
  return Status::Error(StatusCode::kConfig, "%s: input %zu is %s; it needs %s", name, index,
                       SpecText(inputs[index]).text, need);
}

inline Status NoOutputGradient(const char* name) noexcept {
  return Status::Error(StatusCode::kInvalidArgument,
                       "%s: Backward was called without a gradient of the output", name);
}

// Whether Backward adds to the gradient of `input` instead of writing it.
inline bool Accumulates(const OpCall& call, int32_t input) noexcept {
  return (call.accumulate >> input & 1u) != 0;
}

inline bool WantsGradient(const OpCall& call, size_t input) noexcept {
  return input < call.input_grads.size() && call.input_grads[input].data != nullptr;
}

inline ParameterSpec& AddParameter(OpSignature* signature, const Shape& shape) noexcept {
  ParameterSpec& parameter = signature->parameters[signature->parameter_count++];
  parameter.shape = shape;
  return parameter;
}

inline void AddOutput(OpSignature* signature, const Shape& shape, uint32_t batched,
                      DType dtype = DType::kFloat32) noexcept {
  signature->outputs[signature->output_count++] = {shape, dtype, batched};
}

}  // namespace engine::kit
