// A convolution in double precision, by its formula.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstdint>

namespace emulated_cuda {

// x (n, height, width, c), filters (k, kernel, kernel, c), y (n, output_height, output_width, k).
struct ConvolutionProblem {
  int n = 0, height = 0, width = 0, c = 0;
  int k = 0, kernel_height = 0, kernel_width = 0;
  int output_height = 0, output_width = 0;
  int padding_height = 0, padding_width = 0, stride_height = 1, stride_width = 1;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;

  int64_t x_count() const { return int64_t{n} * height * width * c; }
  int64_t y_count() const { return int64_t{n} * output_height * output_width * k; }
  int64_t filter_count() const { return int64_t{k} * kernel_height * kernel_width * c; }
  size_t element_bytes() const { return type == CUDNN_DATA_BFLOAT16 ? 2 : 4; }
};

// result = alpha * pass + beta * result. The result is that of the pass; the factors are the two
// others.
struct ConvolutionTensors {
  void *x, *filters, *y;
  float alpha, beta;
};

void ConvolveForward(const ConvolutionProblem& problem, const ConvolutionTensors& tensors);
void ConvolveBackwardData(const ConvolutionProblem& problem, const ConvolutionTensors& tensors);
void ConvolveBackwardFilter(const ConvolutionProblem& problem, const ConvolutionTensors& tensors);

}  // namespace emulated_cuda
