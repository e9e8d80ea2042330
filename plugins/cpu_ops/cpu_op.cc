#include "cpu_op.h"

#include <omp.h>

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

}  // namespace engine::cpu_ops
