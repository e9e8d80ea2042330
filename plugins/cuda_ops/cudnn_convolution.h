// The passes of a convolution by cuDNN, for one number of samples.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "cudnn_plan.h"

namespace engine::cuda_ops {

// x (samples, height, width, channels), filters (output_channels, kernel_height, kernel_width,
// channels / groups), y (samples, output_height, output_width, output_channels).
struct ConvolutionShape {
  int64_t samples = 0, height = 0, width = 0, channels = 0;
  int64_t output_height = 0, output_width = 0, output_channels = 0;
  int64_t kernel_height = 1, kernel_width = 1, groups = 1;
  GraphWindow window;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;  // of all tensors; sums are of floats
  bool tensor_cores = false;                // which round single precision
  bool adds_forward = false;                // see ConvolutionPass::kAdd
};

// y of x and filters; the gradient of x, of that of y and filters; one of these two (the first where
// the shape says so), added to what is there; the gradient of filters, of x and that of y.
enum class ConvolutionPass { kForward, kBackward, kAdd, kFilters };

class CudnnConvolution {
 public:
  // As CudnnPlan::Create, for all passes.
  static Status Create(Cudnn* cudnn, const ConvolutionShape& shape, int64_t workspace_limit,
                       const char* device, std::unique_ptr<CudnnConvolution>* out);

  // Scratch that any of the passes needs.
  int64_t workspace_bytes() const noexcept { return workspace_bytes_; }

  Status Run(ConvolutionPass pass, const void* a, const void* b, void* result, void* workspace,
             cudaStream_t stream) const noexcept;

 private:
  CudnnConvolution() = default;

  std::array<std::unique_ptr<CudnnPlan>, 4> plans_;  // by pass
  int64_t workspace_bytes_ = 0;
};

}  // namespace engine::cuda_ops
