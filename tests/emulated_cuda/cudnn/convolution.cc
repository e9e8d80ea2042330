#include "tests/emulated_cuda/cudnn/convolution.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <vector>

namespace emulated_cuda {
namespace {

using Doubles = std::vector<double>;

double Load(const void* data, int64_t i, cudnnDataType_t type) {
  if (type == CUDNN_DATA_FLOAT) return static_cast<double>(static_cast<const float*>(data)[i]);
  return static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]));
}

Doubles Read(const void* data, int64_t count, cudnnDataType_t type) {
  Doubles values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = Load(data, i, type);
  return values;
}

// Memory that beta = 0 makes meaningless is not read: it may hold NaN.
void Write(const Doubles& values, void* data, const ConvolutionTensors& tensors,
           cudnnDataType_t type) {
  for (size_t i = 0; i < values.size(); ++i) {
    double value = static_cast<double>(tensors.alpha) * values[i];
    if (tensors.beta != 0) {
      value += static_cast<double>(tensors.beta) * Load(data, static_cast<int64_t>(i), type);
    }
    if (type == CUDNN_DATA_FLOAT) {
      static_cast<float*>(data)[i] = static_cast<float>(value);
    } else {
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(static_cast<float>(value));
    }
  }
}

// Calls body(input position, tap, output position) for all that meet.
template <typename Body>
void ForProducts(const ConvolutionProblem& p, const Body& body) {
  for (int64_t sample = 0; sample < p.n; ++sample) {
    for (int oh = 0; oh < p.output_height; ++oh) {
      for (int ow = 0; ow < p.output_width; ++ow) {
        const int64_t output = (sample * p.output_height + oh) * p.output_width + ow;
        for (int r = 0; r < p.kernel_height; ++r) {
          const int h = oh * p.stride_height - p.padding_height + r;
          if (h < 0 || h >= p.height) continue;
          for (int s = 0; s < p.kernel_width; ++s) {
            const int w = ow * p.stride_width - p.padding_width + s;
            if (w < 0 || w >= p.width) continue;
            body((sample * p.height + h) * p.width + w, r * p.kernel_width + s, output);
          }
        }
      }
    }
  }
}

// (k, taps, c) to (taps, c, k), whose innermost loop is over k.
Doubles ByTaps(const ConvolutionProblem& p, const Doubles& filters) {
  const int64_t rows = int64_t{p.kernel_height} * p.kernel_width * p.c;
  Doubles result(filters.size());
  for (int64_t k = 0; k < p.k; ++k) {
    for (int64_t i = 0; i < rows; ++i) {
      result[static_cast<size_t>(i * p.k + k)] = filters[static_cast<size_t>(k * rows + i)];
    }
  }
  return result;
}

}  // namespace

void ConvolveForward(const ConvolutionProblem& p, const ConvolutionTensors& tensors) {
  const Doubles x = Read(tensors.x, p.x_count(), p.type);
  const Doubles filters = ByTaps(p, Read(tensors.filters, p.filter_count(), p.type));
  Doubles y(static_cast<size_t>(p.y_count()));
  ForProducts(p, [&](int64_t input, int64_t tap, int64_t output) {
    double* const target = &y[static_cast<size_t>(output * p.k)];
    for (int64_t c = 0; c < p.c; ++c) {
      const double value = x[static_cast<size_t>(input * p.c + c)];
      const double* const row = &filters[static_cast<size_t>((tap * p.c + c) * p.k)];
      for (int64_t k = 0; k < p.k; ++k) target[k] += value * row[k];
    }
  });
  Write(y, tensors.y, tensors, p.type);
}

void ConvolveBackwardData(const ConvolutionProblem& p, const ConvolutionTensors& tensors) {
  const Doubles dy = Read(tensors.y, p.y_count(), p.type);
  const Doubles filters = Read(tensors.filters, p.filter_count(), p.type);
  const int64_t taps = int64_t{p.kernel_height} * p.kernel_width;
  Doubles dx(static_cast<size_t>(p.x_count()));
  ForProducts(p, [&](int64_t input, int64_t tap, int64_t output) {
    double* const target = &dx[static_cast<size_t>(input * p.c)];
    for (int64_t k = 0; k < p.k; ++k) {
      const double value = dy[static_cast<size_t>(output * p.k + k)];
      const double* const row = &filters[static_cast<size_t>((k * taps + tap) * p.c)];
      for (int64_t c = 0; c < p.c; ++c) target[c] += value * row[c];
    }
  });
  Write(dx, tensors.x, tensors, p.type);
}

void ConvolveBackwardFilter(const ConvolutionProblem& p, const ConvolutionTensors& tensors) {
  const Doubles x = Read(tensors.x, p.x_count(), p.type);
  const Doubles dy = Read(tensors.y, p.y_count(), p.type);
  const int64_t taps = int64_t{p.kernel_height} * p.kernel_width;
  Doubles dfilters(static_cast<size_t>(p.filter_count()));
  ForProducts(p, [&](int64_t input, int64_t tap, int64_t output) {
    const double* const row = &x[static_cast<size_t>(input * p.c)];
    for (int64_t k = 0; k < p.k; ++k) {
      const double value = dy[static_cast<size_t>(output * p.k + k)];
      double* const target = &dfilters[static_cast<size_t>((k * taps + tap) * p.c)];
      for (int64_t c = 0; c < p.c; ++c) target[c] += value * row[c];
    }
  });
  Write(dfilters, tensors.filters, tensors, p.type);
}

}  // namespace emulated_cuda
