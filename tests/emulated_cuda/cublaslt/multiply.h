// The arithmetic of cublasLtMatmul on the host.
#pragma once

#include "tests/emulated_cuda/cublaslt/problem.h"

namespace emulated_cuda {

struct Operands {
  float alpha = 1, beta = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // not read where beta is 0
  void* d = nullptr;
};

// d = epilogue(alpha op(a) op(b) + beta c). Products are summed in
// float32, in `parts` parts of k that are then added: as different kernels do, whose results differ
// in the last bits. With CUBLAS_COMPUTE_32F_FAST_TF32 factors are rounded to 10 bits.
void Multiply(const Problem& problem, const Operands& operands, int parts);

}  // namespace emulated_cuda
