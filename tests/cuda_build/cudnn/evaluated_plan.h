// In the place of cudnn_library.cc and cudnn_plan.cc of the plugin: plans that evaluate their graphs on
// the host, queued on the stream like a kernel. Memory that is not the device's ends the process.
#pragma once

namespace engine::cuda_ops::test {

// How often plans have run.
int EvaluatedPlanRuns();

// Whether this cuDNN is new enough for attention. It is not until a test says so: the plugin on
// emulated CUDA runs its own kernels.
void EvaluateAttention(bool can);

}  // namespace engine::cuda_ops::test
