#include "tests/emulated_cuda/cudnn/algorithms.h"

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

}  // namespace emulated_cuda
