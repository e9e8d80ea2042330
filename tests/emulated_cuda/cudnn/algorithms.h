// The algorithms that the fake libcudnn.so.9 claims to have: of each pass one that fails for the
// shape, one that is not deterministic, one whose scratch nobody has, and two of use. All compute
// the same.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <span>

#include "tests/emulated_cuda/cudnn/convolution.h"

namespace emulated_cuda {

struct ConvolutionAlgorithm {
  int number = 0;  // of the pass's enumeration
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  cudnnDeterminism_t determinism = CUDNN_DETERMINISTIC;
  size_t workspace_bytes = 0;
};

enum class ConvolutionPass { kForward, kBackwardData, kBackwardFilter };

constexpr size_t kMaxAlgorithms = 5;

// Fills `algorithms`, best first; how many there are.
size_t AlgorithmsFor(ConvolutionPass pass, const ConvolutionProblem& problem,
                     std::span<ConvolutionAlgorithm, kMaxAlgorithms> algorithms);

// The one of that number; with the status NOT_SUPPORTED when there is none.
ConvolutionAlgorithm AlgorithmOf(ConvolutionPass pass, const ConvolutionProblem& problem,
                                 int number);

}  // namespace emulated_cuda
