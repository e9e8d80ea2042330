#include "tests/cuda_build/cudnn/evaluate_graph.h"

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace engine::cuda_ops::test {
namespace {

using Index = std::array<int64_t, 4>;

// A tensor and its numbers. A dimension of one element is repeated for an index of more.
struct Values {
  const GraphTensor* tensor;
  void* data;
  cudnnDataType_t type;  // of `data`

  int64_t Offset(const Index& index) const {
    int64_t offset = 0;
    for (size_t d = 0; d < 4; ++d) {
      const int64_t extent = tensor->extents[d];
      EXPECT_TRUE(index[d] < extent || extent == 1) << "dimension " << d;
      offset += (extent == 1 ? 0 : index[d]) * tensor->strides[d];
    }
    return offset;
  }
  double Load(const Index& index) const {
    const int64_t i = Offset(index);
    if (type == CUDNN_DATA_DOUBLE) return static_cast<const double*>(data)[i];
    if (type == CUDNN_DATA_FLOAT) return static_cast<const float*>(data)[i];
    return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  }
  void Store(const Index& index, double value) const {
    const int64_t i = Offset(index);
    if (type == CUDNN_DATA_DOUBLE) {
      static_cast<double*>(data)[i] = value;
    } else if (type == CUDNN_DATA_FLOAT) {
      static_cast<float*>(data)[i] = static_cast<float>(value);
    } else {
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(static_cast<float>(value));
    }
  }
};

template <typename Function>
void ForEach(const GraphExtents& extents, const Function& function) {
  Index i;
  for (i[0] = 0; i[0] < extents[0]; ++i[0]) {
    for (i[1] = 0; i[1] < extents[1]; ++i[1]) {
      for (i[2] = 0; i[2] < extents[2]; ++i[2]) {
        for (i[3] = 0; i[3] < extents[3]; ++i[3]) function(i);
      }
    }
  }
}

double Map(int mode, double x, double b, double t) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_IDENTITY:
      return x;
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b ? 1 : 0;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return t != 0 ? x : b;
    default:
      ADD_FAILURE() << "no pointwise operation " << mode;
      return NAN;
  }
}

struct Evaluation {
  std::vector<std::vector<double>> own;  // of virtual tensors and scalars
  std::vector<Values> values;

  Evaluation(const CudnnGraph& graph, const GraphMemory& memory, GraphNumbers numbers)
      : own(graph.tensors().size()) {
    for (size_t i = 0; i < graph.tensors().size(); ++i) {
      const GraphTensor& tensor = graph.tensors()[i];
      void* data = memory[i];
      cudnnDataType_t type = CUDNN_DATA_DOUBLE;
      if (tensor.storage == GraphStorage::kMemory) {
        EXPECT_NE(data, nullptr) << "tensor " << i << " has no memory";
        if (numbers == GraphNumbers::kTyped) type = tensor.type;
        EXPECT_TRUE(type == CUDNN_DATA_DOUBLE || type == CUDNN_DATA_FLOAT ||
                    type == CUDNN_DATA_BFLOAT16);
      } else {
        int64_t count = 1;
        for (size_t d = 0; d < 4; ++d) count += (tensor.extents[d] - 1) * tensor.strides[d];
        own[i].assign(static_cast<size_t>(count),
                      tensor.storage == GraphStorage::kScalar ? tensor.value : NAN);
        data = own[i].data();
      }
      values.push_back({&tensor, data, type});
    }
  }

  const Values& at(int tensor) const { return values[static_cast<size_t>(tensor)]; }
  double Read(int tensor, const Index& i) const { return tensor < 0 ? NAN : at(tensor).Load(i); }

  void Run(const GraphOperation& of) const {
    const Values& x = at(of.x);
    const Values& y = at(of.y);
    ForEach(y.tensor->extents, [&](const Index& i) { y.Store(i, Element(of, x, i)); });
  }

  double Element(const GraphOperation& of, const Values& x, const Index& i) const {
    if (of.kind == GraphKind::kTranspose) return x.Load(Transposed(i));
    if (of.kind == GraphKind::kPointwise) {
      if (of.mode == CUDNN_POINTWISE_GEN_INDEX) {
        return static_cast<double>(i[static_cast<size_t>(of.axis)]);
      }
      return Map(of.mode, x.Load(i), Read(of.b, i), Read(of.t, i));
    }
    const bool is_product = of.kind == GraphKind::kMatmul;
    const bool is_max = !is_product && of.mode == CUDNN_REDUCE_TENSOR_MAX;
    double result = is_max ? -INFINITY : 0;
    for (int64_t k = 0; k < x.tensor->extents[3]; ++k) {
      const double value = x.Load({i[0], i[1], i[2], k});
      if (is_product) {
        EXPECT_EQ(x.tensor->extents[3], at(of.b).tensor->extents[2]);
        result += value * Read(of.b, {i[0], i[1], k, i[3]});
      } else {
        result = is_max ? std::max(result, value) : result + value;
      }
    }
    return result;
  }
};

}  // namespace

void EvaluateGraph(const CudnnGraph& graph, const GraphMemory& memory, GraphNumbers numbers,
                   const std::function<void()>& between) {
  const Evaluation evaluation(graph, memory, numbers);
  for (const GraphOperation& operation : graph.operations()) {
    evaluation.Run(operation);
    between();
  }
}

}  // namespace engine::cuda_ops::test
