// The three passes of a convolution by cuDNN, for one number of samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cudnn_library.h"
#include "engine/status.h"

namespace engine::cuda_ops {

// x (samples, height, width, channels), filters (output_channels, kernel, kernel, channels), y
// (samples, output_height, output_width, output_channels).
struct ConvolutionShape {
  int samples = 0, height = 0, width = 0, channels = 0;
  int output_height = 0, output_width = 0, output_channels = 0;
  int kernel = 1, stride = 1, padding = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;  // of all tensors; sums are of floats
  cudnnMathType_t math = CUDNN_FMA_MATH;
};

// Of the algorithms that cuDNN proposes for a pass, the first that is deterministic and needs no
// more scratch than allowed.
class CudnnConvolution {
 public:
  // kDevice when there is no such algorithm, or cuDNN fails. `cudnn` is open and outlives this.
  static Status Create(Cudnn* cudnn, const ConvolutionShape& shape, size_t workspace_limit,
                       std::unique_ptr<CudnnConvolution>* out) noexcept;
  ~CudnnConvolution();
  CudnnConvolution(const CudnnConvolution&) = delete;
  CudnnConvolution& operator=(const CudnnConvolution&) = delete;

  const ConvolutionShape& shape() const noexcept { return shape_; }
  // Scratch that any of the passes needs.
  size_t workspace_bytes() const noexcept;

  // `workspace`: workspace_bytes(), aligned to 256.
  Status Forward(const void* x, const void* filters, void* y, void* workspace,
                 cudaStream_t stream) const noexcept;
  // dx becomes, or has added, the gradient of x.
  Status BackwardData(const void* filters, const void* dy, void* dx, bool sum, void* workspace,
                      cudaStream_t stream) const noexcept;
  Status BackwardFilter(const void* x, const void* dy, void* dfilters, void* workspace,
                        cudaStream_t stream) const noexcept;

 private:
  template <typename Algorithm>
  struct Choice {
    Algorithm algorithm{};
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
    size_t workspace_bytes = 0;
  };

  CudnnConvolution(Cudnn* cudnn, const ConvolutionShape& shape) noexcept
      : cudnn_(*cudnn), shape_(shape) {}
  Status Describe() noexcept;
  Status Choose(size_t workspace_limit) noexcept;
  template <typename Proposal, typename List, typename SizeOf, typename A, typename B, typename C,
            typename Algorithm>
  Status ChooseFirst(const char* pass, size_t limit, List list, SizeOf size_of, A a, B b, C c,
                     Choice<Algorithm>* choice) const noexcept;
  template <typename Function, typename Algorithm, typename A, typename B, typename C>
  Status Run(const char* pass, Function function, const Choice<Algorithm>& choice, A a,
             const void* a_data, B b, const void* b_data, C c, void* c_data, bool sum,
             void* workspace, cudaStream_t stream) const noexcept;
  cudnnStatus_t UseMath(cudnnMathType_t math) const noexcept;

  Cudnn& cudnn_;
  const ConvolutionShape shape_;
  cudnnTensorDescriptor_t x_ = nullptr, y_ = nullptr;
  cudnnFilterDescriptor_t filters_ = nullptr;
  cudnnConvolutionDescriptor_t convolution_ = nullptr;
  Choice<cudnnConvolutionFwdAlgo_t> forward_;
  Choice<cudnnConvolutionBwdDataAlgo_t> backward_data_;
  Choice<cudnnConvolutionBwdFilterAlgo_t> backward_filter_;
};

}  // namespace engine::cuda_ops
