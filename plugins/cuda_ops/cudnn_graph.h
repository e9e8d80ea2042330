// Operation graphs of cuDNN as data: tensors, and what makes one of others.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace engine::cuda_ops {

using GraphExtents = std::array<int64_t, 4>;

// How a convolution's filters lie on rows and columns; both ends of an axis have as many zeros.
struct GraphWindow {
  std::array<int64_t, 2> stride = {1, 1}, padding = {0, 0}, dilation = {1, 1};
};

inline GraphExtents Transposed(const GraphExtents& of) noexcept {
  return {of[0], of[1], of[3], of[2]};
}

// Where a tensor is: between two operations only, on the device (aligned to 16 bytes), or a number
// on the host.
enum class GraphStorage { kVirtual, kMemory, kScalar };

struct GraphTensor {
  GraphExtents extents = {1, 1, 1, 1}, strides = {1, 1, 1, 1};
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  GraphStorage storage = GraphStorage::kVirtual;
  float value = 0;  // of a scalar
};

// Convolutions: y = x * b over (samples, channels, height, width); the gradient of x, from that of
// y and the filters; the gradient of the filters, from x and the gradient of y. Filters with fewer
// channels than x are of as many groups as that is less.
enum class GraphKind {
  kMatmul,
  kPointwise,
  kReduction,
  kTranspose,
  kConvolution,
  kConvolutionData,
  kConvolutionFilter
};

struct GraphOperation {
  GraphKind kind;
  int x = -1, b = -1, t = -1, y = -1;  // indices of tensors
  int mode = -1;                       // cudnnPointwiseMode_t or cudnnReduceTensorOp_t
  int64_t axis = -1;                   // of CUDNN_POINTWISE_GEN_INDEX
  GraphWindow window = {};             // of convolutions
  float beta = 0;                      // y is added to what is there, times beta: convolutions
};

constexpr size_t kMaxGraphTensors = 40;
// Where the tensors are that are in memory.
using GraphMemory = std::array<void*, kMaxGraphTensors>;

// Operations on tensors of four dimensions, in an order in which they can be computed. Each makes a
// tensor: virtual, packed, in single precision, until it is told otherwise.
class CudnnGraph {
 public:
  int Input(const GraphExtents& extents, const GraphExtents& strides, cudnnDataType_t type) {
    return Add({extents, strides, type, GraphStorage::kMemory});
  }
  int Scalar(float value) { return Add({.storage = GraphStorage::kScalar, .value = value}); }

  int Multiply(int a, int b);  // matrices of the last two dimensions
  int Map(cudnnPointwiseMode_t mode, int x, int b = -1, int t = -1);
  int Index(int x, int64_t axis);                 // of each element of x in a dimension
  int Reduce(cudnnReduceTensorOp_t mode, int x);  // over the last dimension
  int Transpose(int x);                           // the last two dimensions
  // `operation`: all but its result.
  int Convolve(const GraphOperation& operation, const GraphExtents& result) {
    return Add(operation, result);
  }

  // Rounds a result to `type`; writes it to memory.
  void Round(int tensor, cudnnDataType_t type) { at(tensor).type = type; }
  void Store(int tensor, const GraphExtents& strides, cudnnDataType_t type) {
    at(tensor) = {at(tensor).extents, strides, type, GraphStorage::kMemory};
  }

  const std::vector<GraphTensor>& tensors() const noexcept { return tensors_; }
  const std::vector<GraphOperation>& operations() const noexcept { return operations_; }

 private:
  GraphTensor& at(int tensor) { return tensors_[static_cast<size_t>(tensor)]; }
  int Add(const GraphTensor& tensor);
  int Add(GraphOperation operation, const GraphExtents& extents);

  std::vector<GraphTensor> tensors_;
  std::vector<GraphOperation> operations_;
};

}  // namespace engine::cuda_ops
