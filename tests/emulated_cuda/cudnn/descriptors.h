// What is behind the handles of the fake libcudnn.so.9, and its checks.
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <optional>

#include "tests/emulated_cuda/cudnn/convolution.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int n = 0, c = 0, h = 0, w = 0;
};

struct cudnnFilterStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int k = 0, c = 0, h = 0, w = 0;
};

struct cudnnConvolutionStruct {
  int padding_height = 0, padding_width = 0, stride_height = 1, stride_width = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace emulated_cuda {

// The problem of three descriptors and a convolution, or nothing unless they fit together.
std::optional<ConvolutionProblem> ProblemOf(const cudnnTensorStruct* x,
                                            const cudnnFilterStruct* filters,
                                            const cudnnConvolutionStruct* convolution,
                                            const cudnnTensorStruct* y);

}  // namespace emulated_cuda
