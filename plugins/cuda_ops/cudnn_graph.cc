#include "cudnn_graph.h"

#include "engine/status.h"

namespace engine::cuda_ops {

int CudnnGraph::Add(const GraphTensor& tensor) {
  ENGINE_CHECK(tensors_.size() < kMaxGraphTensors, "too many tensors in a graph");
  tensors_.push_back(tensor);
  return static_cast<int>(tensors_.size()) - 1;
}

int CudnnGraph::Add(GraphOperation operation, const GraphExtents& of) {
  operation.y = Add(GraphTensor{of, {of[1] * of[2] * of[3], of[2] * of[3], of[3], 1}});
  operations_.push_back(operation);
  return operation.y;
}

int CudnnGraph::Multiply(int a, int b) {
  GraphExtents extents = at(a).extents;
  extents[3] = at(b).extents[3];
  return Add({.kind = GraphKind::kMatmul, .x = a, .b = b}, extents);
}

int CudnnGraph::Map(cudnnPointwiseMode_t mode, int x, int b, int t) {
  const int y =
      Add({.kind = GraphKind::kPointwise, .x = x, .b = b, .t = t, .mode = mode}, at(x).extents);
  if (mode == CUDNN_POINTWISE_CMP_GE) Round(y, CUDNN_DATA_BOOLEAN);
  return y;
}

int CudnnGraph::Index(int x, int64_t axis) {
  const int y = Map(CUDNN_POINTWISE_GEN_INDEX, x);
  operations_.back().axis = axis;
  Round(y, CUDNN_DATA_INT32);
  return y;
}

int CudnnGraph::Reduce(cudnnReduceTensorOp_t mode, int x) {
  GraphExtents extents = at(x).extents;
  extents[3] = 1;
  return Add({.kind = GraphKind::kReduction, .x = x, .mode = mode}, extents);
}

int CudnnGraph::Transpose(int x) {
  const int y = Add({.kind = GraphKind::kTranspose, .x = x}, Transposed(at(x).extents));
  at(y).strides = Transposed(at(x).strides);
  return y;
}

}  // namespace engine::cuda_ops
