#include "tests/emulated_cuda/cudnn/descriptors.h"

namespace emulated_cuda {

std::optional<ConvolutionProblem> ProblemOf(const cudnnTensorStruct* x,
                                            const cudnnFilterStruct* filters,
                                            const cudnnConvolutionStruct* convolution,
                                            const cudnnTensorStruct* y) {
  if (x == nullptr || filters == nullptr || convolution == nullptr || y == nullptr) return {};
  const auto positions = [](int extent, int padding, int kernel, int stride) {
    return (extent + 2 * padding - kernel) / stride + 1;
  };
  const bool fits =
      x->type == filters->type && x->type == y->type && x->c == filters->c && y->c == filters->k &&
      x->n == y->n &&
      y->h ==
          positions(x->h, convolution->padding_height, filters->h, convolution->stride_height) &&
      y->w == positions(x->w, convolution->padding_width, filters->w, convolution->stride_width);
  // Full float32 is not what tensor cores compute.
  const bool math = x->type == CUDNN_DATA_FLOAT || convolution->math != CUDNN_FMA_MATH;
  if (!fits || !math) return {};
  return ConvolutionProblem{.n = x->n,
                            .height = x->h,
                            .width = x->w,
                            .c = x->c,
                            .k = filters->k,
                            .kernel_height = filters->h,
                            .kernel_width = filters->w,
                            .output_height = y->h,
                            .output_width = y->w,
                            .padding_height = convolution->padding_height,
                            .padding_width = convolution->padding_width,
                            .stride_height = convolution->stride_height,
                            .stride_width = convolution->stride_width,
                            .type = x->type};
}

}  // namespace emulated_cuda
