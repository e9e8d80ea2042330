#include "cpu_op.h"

#include <omp.h>

#include <algorithm>

#include "parallel.h"

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
  const auto is_wanted = [](const TensorView& gradient) { return gradient.data != nullptr; };
  if (std::ranges::none_of(call.input_grads, is_wanted)) return {};
  omp_set_num_threads(context_.threads);
  return DoBackward(call);
}

template <typename A, typename B>
CPU_OPS_KERNEL void Add(const A* a, const B* b, A* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
}
// The second adds a gradient that arrives in bfloat16 to one of a parameter.
template void Add(const float*, const float*, float*, int64_t, int64_t);
template void Add(const float*, const BFloat16*, float*, int64_t, int64_t);
template void Add(const BFloat16*, const BFloat16*, BFloat16*, int64_t, int64_t);

namespace {

template <typename From, typename To>
CPU_OPS_KERNEL void ConvertRange(const From* source, To* target, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) target[i] = source[i];
}

}  // namespace

void Convert(const TensorView& source, const TensorView& target) noexcept {
  ForElements(target.count(), [&](int64_t begin, int64_t end) {
    if (target.dtype == DType::kBFloat16) {
      ConvertRange(source.f32(), As<BFloat16>(target), begin, end);
    } else {
      ConvertRange(As<const BFloat16>(source), target.f32(), begin, end);
    }
  });
}

void PassGradient(const TensorView& source, const TensorView& target, bool sum) noexcept {
  if (source.data == target.data) return;
  if (source.dtype != target.dtype) {  // the gradient of a batch in float32
    if (!sum) return Convert(source, target);
    return ForElements(target.count(), [&](int64_t begin, int64_t end) {
      Add(target.f32(), As<BFloat16>(source), target.f32(), begin, end);
    });
  }
  WithElement(source.dtype, [&]<typename T>(T) {
    const T* dy = As<const T>(source);
    T* dx = As<T>(target);
    ForElements(target.count(), [&](int64_t begin, int64_t end) {
      if (sum) {
        Add(dx, dy, dx, begin, end);
      } else {
        std::memcpy(dx + begin, dy + begin, static_cast<size_t>(end - begin) * sizeof(T));
      }
    });
  });
}

void PassGradient(const OpCall& call, const TensorView& source, int32_t input) noexcept {
  const auto i = static_cast<size_t>(input);
  if (WantsGradient(call, i)) PassGradient(source, call.input_grads[i], Accumulates(call, input));
}

}  // namespace engine::cpu_ops
