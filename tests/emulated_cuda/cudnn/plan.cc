// In the place of cudnn_library.cc and cudnn_plan.cc of the plugin: convolutions on the host,
// queued on the stream like a kernel. Memory that is not the device's ends the process. Attention
// is refused, so it runs on the plugin's own kernels.
#include <cstring>

#include "cudnn_plan.h"
#include "tests/emulated_cuda/cudnn/convolution.h"
#include "tests/emulated_cuda/runtime.h"

namespace engine::cuda_ops {
namespace {

using emulated_cuda::ConvolutionProblem;
using emulated_cuda::ConvolutionTensors;

// The tensors of a pass: x, filters and y, in the order of its operation.
struct Roles {
  int x, filters, y;
};

Roles RolesOf(const GraphOperation& of) {
  if (of.kind == GraphKind::kConvolutionData) return {of.y, of.b, of.x};
  if (of.kind == GraphKind::kConvolutionFilter) return {of.x, of.y, of.b};
  return {of.x, of.b, of.y};
}

bool IsChannelsLast(const GraphTensor& tensor) {
  const GraphExtents& of = tensor.extents;
  return tensor.strides == GraphExtents{of[1] * of[2] * of[3], 1, of[3] * of[1], of[1]} &&
         tensor.storage == GraphStorage::kMemory;
}

ConvolutionProblem ProblemOf(const CudnnGraph& graph, const Roles& roles) {
  const auto extent = [&](int tensor, size_t d) {
    return static_cast<int>(graph.tensors()[static_cast<size_t>(tensor)].extents[d]);
  };
  const GraphOperation& of = graph.operations()[0];
  const int stride = static_cast<int>(of.stride), padding = static_cast<int>(of.padding);
  return {.n = extent(roles.x, 0),
          .height = extent(roles.x, 2),
          .width = extent(roles.x, 3),
          .c = extent(roles.x, 1),
          .k = extent(roles.filters, 0),
          .kernel_height = extent(roles.filters, 2),
          .kernel_width = extent(roles.filters, 3),
          .output_height = extent(roles.y, 2),
          .output_width = extent(roles.y, 3),
          .padding_height = padding,
          .padding_width = padding,
          .stride_height = stride,
          .stride_width = stride,
          .type = graph.tensors()[static_cast<size_t>(of.y)].type};
}

void CheckMemory(const void* data, int64_t bytes, const char* what) {
  if (!emulated_cuda_is_device_range(data, static_cast<size_t>(bytes))) emulated_cuda_fail(what);
}

}  // namespace

Cudnn::~Cudnn() = default;

Status Cudnn::Open() noexcept {
  return {};
}

Status Cudnn::CheckVersion(size_t) const noexcept {
  return Status::Error(StatusCode::kPlugin, "emulated cuDNN is for convolutions");
}

Status CudnnPlan::Create(Cudnn* cudnn, const CudnnGraph& graph, const EngineLimits& limits,
                         const char*, std::unique_ptr<CudnnPlan>* out) {
  bool known =
      graph.operations().size() == 1 && graph.operations()[0].kind >= GraphKind::kConvolution;
  for (const GraphTensor& tensor : graph.tensors()) known = known && IsChannelsLast(tensor);
  std::unique_ptr<CudnnPlan> own(new CudnnPlan(cudnn, graph));
  own->workspace_bytes_ = graph.tensors()[0].extents[0] * 48 + 1000;
  if (!known || own->workspace_bytes_ > limits.workspace_bytes) {
    return Status::Error(StatusCode::kUnsupported, "cuDNN has no engine for the graph");
  }
  *out = std::move(own);
  return {};
}

CudnnPlan::~CudnnPlan() = default;

Status CudnnPlan::Run(const GraphMemory& memory, void* workspace,
                      cudaStream_t stream) const noexcept {
  const GraphOperation& of = graph_.operations()[0];
  const Roles roles = RolesOf(of);
  const ConvolutionProblem problem = ProblemOf(graph_, roles);
  const auto at = [&](int tensor) { return memory[static_cast<size_t>(tensor)]; };
  const ConvolutionTensors tensors = {at(roles.x), at(roles.filters), at(roles.y), 1, of.beta};
  const auto element = static_cast<int64_t>(problem.element_bytes());
  CheckMemory(tensors.x, problem.x_count() * element, "x of a convolution");
  CheckMemory(tensors.y, problem.y_count() * element, "y of a convolution");
  CheckMemory(tensors.filters, problem.filter_count() * element, "the filters of a convolution");
  CheckMemory(workspace, workspace_bytes_, "the scratch of a convolution");
  const auto pass = of.kind == GraphKind::kConvolutionData ? emulated_cuda::ConvolveBackwardData
                    : of.kind == GraphKind::kConvolutionFilter
                        ? emulated_cuda::ConvolveBackwardFilter
                        : emulated_cuda::ConvolveForward;
  const cudaError_t error = emulated_cuda::Enqueue(
      stream, [problem, tensors, workspace, pass, bytes = static_cast<size_t>(workspace_bytes_)] {
        std::memset(workspace, 0xff, bytes);
        pass(problem, tensors);
        return cudaSuccess;
      });
  if (error == cudaSuccess) return {};
  return Status::Error(StatusCode::kDevice, "convolution: %s", cudaGetErrorString(error));
}

}  // namespace engine::cuda_ops
