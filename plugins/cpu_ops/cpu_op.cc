#include "cpu_op.h"

#include <omp.h>

#include <cstring>

#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {

// OpenMP's number of threads belongs to the calling thread: a rank that is a thread of this process
// does not disturb the others.
Status CpuOp::Forward(const OpCall& call) noexcept {
  omp_set_num_threads(context_.threads);
  return DoForward(call);
}

Status CpuOp::Backward(const OpCall& call) noexcept {
  if (call.output_grads.empty() ||
      (call.output_grads[0].data == nullptr && call.output_grads[0].count() > 0)) {
    return kit::NoOutputGradient(name());
  }
  omp_set_num_threads(context_.threads);
  return DoBackward(call);
}

CPU_OPS_KERNEL void Add(const float* a, const float* b, float* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
}

void PassGradient(const TensorView& source, const TensorView& target, bool sum) noexcept {
  if (source.data == target.data) return;
  const float* dy = source.f32();
  float* dx = target.f32();
  ForElements(target.count(), [&](int64_t begin, int64_t end) {
    if (sum) {
      Add(dx, dy, dx, begin, end);
    } else {
      std::memcpy(dx + begin, dy + begin, static_cast<size_t>(end - begin) * sizeof(float));
    }
  });
}

void PassGradient(const OpCall& call, const TensorView& source, int32_t input) noexcept {
  const auto i = static_cast<size_t>(input);
  if (WantsGradient(call, i)) PassGradient(source, call.input_grads[i], Accumulates(call, input));
}

}  // namespace engine::cpu_ops
