// In the place of cudnn_plan.cc and cudnn_library.cc: plans that evaluate their graphs on the host.
#include "tests/cuda_build/cudnn/evaluated_plan.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "cudnn_plan.h"
#include "tests/cuda_build/cudnn/evaluate_graph.h"

namespace engine::cuda_ops {
namespace {

constexpr int64_t kWorkspaceBytes = 1000;

int& Runs() {
  static int runs = 0;
  return runs;
}

}  // namespace

int test::EvaluatedPlanRuns() {
  return Runs();
}

Cudnn::~Cudnn() = default;

Status Cudnn::Open() noexcept {
  return {};
}

Status Cudnn::CheckVersion(size_t) const noexcept {
  return {};
}

Status CudnnPlan::Create(Cudnn* cudnn, const CudnnGraph& graph, const EngineLimits&, const char*,
                         std::unique_ptr<CudnnPlan>* out) {
  out->reset(new CudnnPlan(cudnn, graph));
  (*out)->workspace_bytes_ = kWorkspaceBytes;
  return {};
}

CudnnPlan::~CudnnPlan() = default;

Status CudnnPlan::Run(const GraphMemory& memory, void* workspace,
                      cudaStream_t stream) const noexcept {
  ++Runs();
  if (cudaStreamSynchronize(stream) != cudaSuccess) {
    return Status::Error(StatusCode::kDevice, "the stream failed");
  }
  // The scratch becomes NaN again and again: nothing else may be there.
  test::EvaluateGraph(graph_, memory, test::GraphNumbers::kTyped,
                      [&] { memset(workspace, 0xff, kWorkspaceBytes); });
  return {};
}

}  // namespace engine::cuda_ops
