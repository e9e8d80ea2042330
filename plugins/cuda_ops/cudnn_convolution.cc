#include "cudnn_convolution.h"

#include <algorithm>
#include <utility>

namespace engine::cuda_ops {

Status CudnnConvolution::Create(Cudnn* cudnn, const ConvolutionShape& of, int64_t workspace_limit,
                                const char* device, std::unique_ptr<CudnnConvolution>* out) {
  const GraphExtents x = {of.samples, of.channels, of.height, of.width},
                     filters = {of.output_channels, of.channels / of.groups, of.kernel_height,
                                of.kernel_width},
                     y = {of.samples, of.output_channels, of.output_height, of.output_width};
  struct Pass {
    const char* name;
    GraphKind kind;
    const GraphExtents &a, &b, &result;
    float beta;
  };
  const Pass passes[] = {
      {"forward pass", GraphKind::kConvolution, x, filters, y, 0},
      {"gradient of the input", GraphKind::kConvolutionData, y, filters, x, 0},
      of.adds_forward
          ? Pass{"forward pass", GraphKind::kConvolution, x, filters, y, 1}
          : Pass{"gradient of the input", GraphKind::kConvolutionData, y, filters, x, 1},
      {"gradient of the weight", GraphKind::kConvolutionFilter, x, y, filters, 0},
  };
  const auto channels_last = [](const GraphExtents& e) -> GraphExtents {
    return {e[1] * e[2] * e[3], 1, e[3] * e[1], e[1]};
  };
  std::unique_ptr<CudnnConvolution> own(new CudnnConvolution);
  for (size_t i = 0; i < own->plans_.size(); ++i) {
    const auto& pass = passes[i];
    CudnnGraph graph;
    const int a = graph.Input(pass.a, channels_last(pass.a), of.type);
    const int b = graph.Input(pass.b, channels_last(pass.b), of.type);
    const int result = graph.Convolve(
        {.kind = pass.kind, .x = a, .b = b, .window = of.window, .beta = pass.beta}, pass.result);
    graph.Store(result, channels_last(pass.result), of.type);
    ENGINE_RETURN_IF_ERROR(
        CudnnPlan::Create(cudnn, graph, {of.tensor_cores, workspace_limit}, device, &own->plans_[i])
            .WithContext("%s of a convolution of %lld samples with %lld bytes of scratch",
                         pass.name, static_cast<long long>(of.samples),
                         static_cast<long long>(workspace_limit)));
    own->workspace_bytes_ = std::max(own->workspace_bytes_, own->plans_[i]->workspace_bytes());
  }
  *out = std::move(own);
  return {};
}

Status CudnnConvolution::Run(ConvolutionPass pass, const void* a, const void* b, void* result,
                             void* workspace, cudaStream_t stream) const noexcept {
  const GraphMemory memory = {const_cast<void*>(a), const_cast<void*>(b), result};
  return plans_[static_cast<size_t>(pass)]->Run(memory, workspace, stream);
}

}  // namespace engine::cuda_ops
