#include "tests/cuda_build/cudnn/evaluated_plan.h"

#include <atomic>
#include <cstring>

#include "cudnn_plan.h"
#include "tests/cuda_build/cudnn/evaluate_graph.h"
#include "tests/emulated_cuda/runtime.h"

namespace engine::cuda_ops {
namespace {

std::atomic<int> g_runs = 0;
std::atomic<bool> g_attention = false;

void CheckMemory(const void* data, int64_t bytes) {
  if (emulated_cuda_is_device_range(data, static_cast<size_t>(bytes))) return;
  emulated_cuda_fail("a tensor or the scratch of a cuDNN plan is not in device memory");
}

}  // namespace

int test::EvaluatedPlanRuns() {
  return g_runs;
}

void test::EvaluateAttention(bool can) {
  g_attention = can;
}

Cudnn::~Cudnn() = default;

Status Cudnn::Open() noexcept {
  return {};
}

Status Cudnn::CheckVersion(size_t) const noexcept {
  if (g_attention) return {};
  return Status::Error(StatusCode::kPlugin, "emulated cuDNN is for convolutions");
}

Status CudnnPlan::Create(Cudnn* cudnn, const CudnnGraph& graph, const EngineLimits& limits,
                         const char*, std::unique_ptr<CudnnPlan>* out) {
  std::unique_ptr<CudnnPlan> own(new CudnnPlan(cudnn, graph));
  own->workspace_bytes_ = graph.tensors()[0].extents[0] * 48 + 1000;
  if (own->workspace_bytes_ > limits.workspace_bytes) {
    return Status::Error(StatusCode::kUnsupported, "cuDNN has no engine for the graph");
  }
  *out = std::move(own);
  return {};
}

CudnnPlan::~CudnnPlan() = default;

Status CudnnPlan::Run(const GraphMemory& memory, void* workspace,
                      cudaStream_t stream) const noexcept {
  ++g_runs;
  CheckMemory(workspace, workspace_bytes_);
  for (size_t i = 0; i < graph_.tensors().size(); ++i) {
    const GraphTensor& tensor = graph_.tensors()[i];
    if (tensor.storage != GraphStorage::kMemory) continue;
    CheckMemory(memory[i], test::CountOf(tensor) * (tensor.type == CUDNN_DATA_BFLOAT16 ? 2 : 4));
  }
  // The scratch becomes NaN again and again: nothing else may be there.
  const auto poison = [workspace, bytes = static_cast<size_t>(workspace_bytes_)] {
    memset(workspace, 0xff, bytes);
  };
  const cudaError_t error = emulated_cuda::Enqueue(stream, [graph = graph_, memory, poison] {
    poison();
    test::EvaluateGraph(graph, memory, test::GraphNumbers::kTyped, poison);
    return cudaSuccess;
  });
  if (error == cudaSuccess) return {};
  return Status::Error(StatusCode::kDevice, "a plan: %s", cudaGetErrorString(error));
}

}  // namespace engine::cuda_ops
