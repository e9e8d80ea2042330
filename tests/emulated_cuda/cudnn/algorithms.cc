#include "tests/emulated_cuda/cudnn/algorithms.h"

#include "tests/emulated_cuda/cudnn/descriptors.h"

namespace emulated_cuda {

size_t AlgorithmsFor(ConvolutionPass pass, const ConvolutionProblem& problem,
                     std::span<ConvolutionAlgorithm, kMaxAlgorithms> algorithms) {
  const size_t scratch = static_cast<size_t>(problem.n) * 48 + 1000;
  const auto refused = CUDNN_STATUS_NOT_SUPPORTED;
  const size_t huge = size_t{1} << 45;
  size_t count = 0;
  const auto add = [&](int number, cudnnStatus_t status, cudnnDeterminism_t determinism,
                       size_t workspace_bytes) {
    algorithms[count++] = {number, status, determinism, workspace_bytes};
  };
  const auto same = CUDNN_DETERMINISTIC, varying = CUDNN_NON_DETERMINISTIC;
  const auto ok = CUDNN_STATUS_SUCCESS;
  switch (pass) {
    case ConvolutionPass::kForward:
      add(CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, refused, same, 0);
      add(CUDNN_CONVOLUTION_FWD_ALGO_FFT, ok, same, huge);
      add(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, ok, same, scratch);
      add(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, ok, same, 0);
      break;
    case ConvolutionPass::kBackwardData:
      add(CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, ok, varying, 0);
      add(CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, ok, same, huge);
      add(CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, refused, same, 0);
      add(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, ok, same, 2 * scratch);
      break;
    case ConvolutionPass::kBackwardFilter:
      add(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, ok, varying, 0);
      add(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, ok, varying, 100);
      add(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, ok, same, huge);
      add(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, ok, same, scratch / 2);
      break;
  }
  return count;
}

ConvolutionAlgorithm AlgorithmOf(ConvolutionPass pass, const ConvolutionProblem& problem,
                                 int number) {
  ConvolutionAlgorithm algorithms[kMaxAlgorithms];
  const size_t count = AlgorithmsFor(pass, problem, algorithms);
  for (size_t i = 0; i < count; ++i) {
    if (algorithms[i].number == number) return algorithms[i];
  }
  return {.number = number, .status = CUDNN_STATUS_NOT_SUPPORTED};
}

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
