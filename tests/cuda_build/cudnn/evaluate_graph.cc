#include "tests/cuda_build/cudnn/evaluate_graph.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "engine/status.h"

namespace engine::cuda_ops::test {
namespace {

using Index = std::array<int64_t, 4>;

// A tensor and its numbers. A dimension of one element is repeated for an index of more.
struct Values {
  const GraphTensor* tensor;
  void* data;
  cudnnDataType_t type;  // of `data`

  int64_t extent(size_t d) const { return tensor->extents[d]; }
  int64_t stride(size_t d) const { return tensor->strides[d]; }
  int64_t Offset(const Index& index) const {
    int64_t offset = 0;
    for (size_t d = 0; d < 4; ++d) {
      const int64_t extent = tensor->extents[d];
      ENGINE_CHECK(index[d] < extent || extent == 1, "an index is outside of a tensor");
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

// Calls multiply(element of x, of the filters, of y) for all that meet in a convolution of x (samples,
// channels, height, width) with filters (output channels, channels of a group, height, width). The
// numbers lie as the tensors do.
template <typename Multiply>
void ForProducts(const GraphOperation& of, const Values& x, const Values& filters, const Values& y,
                 double* x_numbers, double* filter_numbers, double* y_numbers,
                 const Multiply& multiply) {
  const auto place = [&of](size_t axis, int64_t position, int64_t tap) {
    const auto& [stride, padding, dilation] = of.window;
    return position * stride[axis] - padding[axis] + tap * dilation[axis];
  };
  const int64_t channels = filters.extent(1), groups = x.extent(1) / channels;
  ENGINE_CHECK(x.extent(1) % channels == 0 && y.extent(1) % groups == 0, "groups do not fit");
  ForEach({y.extent(0), y.extent(2), y.extent(3), filters.extent(2)}, [&](const Index& i) {
    const auto [sample, row, column, r] = i;
    const int64_t h = place(0, row, r);
    if (h < 0 || h >= x.extent(2)) return;
    for (int64_t s = 0; s < filters.extent(3); ++s) {
      const int64_t w = place(1, column, s);
      if (w < 0 || w >= x.extent(3)) continue;
      for (int64_t k = 0; k < filters.extent(0); ++k) {
        const int64_t first = k / (y.extent(1) / groups) * channels;  // of the group
        double* const from = x_numbers + x.Offset({sample, first, h, w});
        double* const filter = filter_numbers + filters.Offset({k, 0, r, s});
        double* const to = y_numbers + y.Offset({sample, k, row, column});
        for (int64_t c = 0; c < channels; ++c) {
          multiply(from[c * x.stride(1)], filter[c * filters.stride(1)], *to);
        }
      }
    }
  });
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
      ENGINE_CHECK(false, "a pointwise operation that the test does not know");
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
        ENGINE_CHECK(data != nullptr, "a tensor of a graph has no memory");
        if (numbers == GraphNumbers::kTyped) type = tensor.type;
        ENGINE_CHECK(
            type == CUDNN_DATA_DOUBLE || type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16,
            "a type that the test does not know");
      } else {
        own[i].assign(static_cast<size_t>(CountOf(tensor)),
                      tensor.storage == GraphStorage::kScalar ? tensor.value : NAN);
        data = own[i].data();
      }
      values.push_back({&tensor, data, type});
    }
  }

  const Values& at(int tensor) const { return values[static_cast<size_t>(tensor)]; }
  double Read(int tensor, const Index& i) const { return tensor < 0 ? NAN : at(tensor).Load(i); }

  void Run(const GraphOperation& of) const {
    if (of.kind >= GraphKind::kConvolution) return Convolve(of);
    const Values& x = at(of.x);
    const Values& y = at(of.y);
    ForEach(y.tensor->extents, [&](const Index& i) { y.Store(i, Element(of, x, i)); });
  }

  // Memory that beta = 0 makes meaningless is not read: it may hold NaN.
  void Convolve(const GraphOperation& of) const {
    const bool of_data = of.kind == GraphKind::kConvolutionData;
    const bool of_filters = of.kind == GraphKind::kConvolutionFilter;
    const Values& result = at(of.y);
    const Values& x = of_data ? result : at(of.x);
    const Values& filters = of_filters ? result : at(of.b);
    const Values& y = of_data ? at(of.x) : of_filters ? at(of.b) : result;
    const auto numbers_of = [&](const Values& of_tensor) {
      std::vector<double> numbers(static_cast<size_t>(CountOf(*of_tensor.tensor)));
      if (&of_tensor == &result) return numbers;  // sums, from 0 on
      ForEach(of_tensor.tensor->extents, [&](const Index& i) {
        numbers[static_cast<size_t>(of_tensor.Offset(i))] = of_tensor.Load(i);
      });
      return numbers;
    };
    std::vector<double> xs = numbers_of(x), fs = numbers_of(filters), ys = numbers_of(y);
    const auto run = [&](const auto& multiply) {
      ForProducts(of, x, filters, y, xs.data(), fs.data(), ys.data(), multiply);
    };
    if (of_data) {
      run([](double& dx, double filter, double dy) { dx += dy * filter; });
    } else if (of_filters) {
      run([](double in, double& dfilter, double dy) { dfilter += in * dy; });
    } else {
      run([](double in, double filter, double& out) { out += in * filter; });
    }
    const std::vector<double>& sums = of_data ? xs : of_filters ? fs : ys;
    ForEach(result.tensor->extents, [&](const Index& i) {
      const double before = of.beta == 0 ? 0 : of.beta * result.Load(i);
      result.Store(i, sums[static_cast<size_t>(result.Offset(i))] + before);
    });
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
        ENGINE_CHECK(x.tensor->extents[3] == at(of.b).tensor->extents[2], "factors do not fit");
        result += value * Read(of.b, {i[0], i[1], k, i[3]});
      } else {
        result = is_max ? std::max(result, value) : result + value;
      }
    }
    return result;
  }
};

}  // namespace

int64_t CountOf(const GraphTensor& tensor) {
  int64_t count = 1;
  for (size_t d = 0; d < 4; ++d) count += (tensor.extents[d] - 1) * tensor.strides[d];
  return count;
}

void EvaluateGraph(const CudnnGraph& graph, const GraphMemory& memory, GraphNumbers numbers,
                   const std::function<void()>& between) {
  const Evaluation evaluation(graph, memory, numbers);
  for (const GraphOperation& operation : graph.operations()) {
    evaluation.Run(operation);
    between();
  }
}

}  // namespace engine::cuda_ops::test
