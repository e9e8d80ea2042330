#include "cpu_op.h"

#include <omp.h>

#include <cstdio>

namespace engine::cpu_ops {
namespace {

// "float32 (8, 128, 768)"
struct SpecText {
  char text[160];

  explicit SpecText(const TensorSpec& spec) noexcept {
    size_t length = static_cast<size_t>(snprintf(text, sizeof text, "%s (", Name(spec.dtype)));
    for (int32_t i = 0; i < spec.shape.ndim; ++i) {
      length +=
          static_cast<size_t>(snprintf(text + length, sizeof text - length, "%s%lld",
                                       i > 0 ? ", " : "", static_cast<long long>(spec.shape[i])));
    }
    snprintf(text + length, sizeof text - length, ")");
  }
};

}  // namespace

Status CpuOp::Forward(const OpCall& call) noexcept {
  omp_set_num_threads(context_.threads);
  return DoForward(call);
}

Status CpuOp::Backward(const OpCall& call) noexcept {
  if (call.output_grads.empty() ||
      (call.output_grads[0].data == nullptr && call.output_grads[0].count() > 0)) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "%s: Backward was called without a gradient of the output", name());
  }
  omp_set_num_threads(context_.threads);
  return DoBackward(call);
}

Status CpuOp::CheckInputCount(std::span<const TensorSpec> inputs, size_t count) const noexcept {
  if (inputs.size() == count) return {};
  return Status::Error(StatusCode::kConfig, "%s: got %zu inputs; it needs %zu", name(),
                       inputs.size(), count);
}

Status CpuOp::InputError(std::span<const TensorSpec> inputs, size_t index,
                         const char* need) const noexcept {
  return Status::Error(StatusCode::kConfig, "%s: input %zu is %s; it needs %s", name(), index,
                       SpecText(inputs[index]).text, need);
}

}  // namespace engine::cpu_ops
