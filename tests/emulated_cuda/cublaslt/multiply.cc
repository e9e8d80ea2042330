// The arithmetic of cublasLtMatmul on the host.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <type_traits>
#include <vector>

#include "tests/emulated_cuda/cublaslt/problem.h"
#include "tests/support/elements.h"

namespace emulated_cuda {
namespace {

using Matrix = std::vector<float>;  // column-major, without gaps

engine::DType TypeOf(uint32_t type) {
  return type == CUDA_R_32F ? engine::DType::kFloat32 : engine::DType::kBFloat16;
}

float Load(const void* data, uint32_t type, int64_t index) {
  return static_cast<float>(
      engine::test::ReadElement(TypeOf(type), data, static_cast<size_t>(index)));
}

void Store(void* data, uint32_t type, int64_t index, float value) {
  engine::test::WriteElement(TypeOf(type), data, static_cast<size_t>(index), value);
}

// To nearest, ties away from zero (cvt.rna.tf32.f32 of PTX).
float ToTf32(float value) {
  const uint32_t rounded = (std::bit_cast<uint32_t>(value) + 0x1000u) & ~0x1fffu;
  return std::isfinite(value) ? std::bit_cast<float>(rounded) : value;
}

// op(data), rows x columns, without gaps.
Matrix Pack(const void* data, const MatrixLayout& layout, bool transposed, bool tf32) {
  const auto rows = static_cast<int64_t>(layout.rows);
  const auto columns = static_cast<int64_t>(layout.columns);
  Matrix packed(static_cast<size_t>(rows * columns));
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) {
      const float value = Load(data, layout.type, column * layout.ld + row);
      const int64_t place = transposed ? row * columns + column : column * rows + row;
      packed[static_cast<size_t>(place)] = tf32 ? ToTf32(value) : value;
    }
  }
  return packed;
}

// sums (m, n) += a (m, k) b (k, n), for k in [first, last).
__attribute__((target_clones("avx512f", "avx2", "default"))) void AddProduct(
    int64_t m, int64_t n, int64_t k, int64_t first, int64_t last, const float* __restrict a,
    const float* __restrict b, float* __restrict sums) {
  constexpr int64_t kRows = 256;  // of a that stay in the nearest cache with those of sums
  for (int64_t row = 0; row < m; row += kRows) {
    const int64_t rows = std::min(kRows, m - row);
    for (int64_t column = 0; column < n; ++column) {
      float* __restrict const out = sums + column * m + row;
      for (int64_t i = first; i < last; ++i) {
        const float factor = b[column * k + i];
        const float* __restrict const in = a + i * m + row;
        for (int64_t r = 0; r < rows; ++r) out[r] += in[r] * factor;
      }
    }
  }
}

// The approximation with tanh, which is the one of cuBLASLt.
constexpr float kSqrt2OverPi = 0.7978845608028654f;
constexpr float kCubic = 0.044715f;

float Gelu(float x) {
  return 0.5f * x * (1 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
}

float GeluDerivative(float x) {
  const float t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
}

class Epilogue {
 public:
  explicit Epilogue(const Problem& problem)
      : problem_(problem),
        type_(problem.d.type),
        bias_(problem.description.bias),
        aux_(problem.description.aux) {}

  float Apply(float value, int64_t row, int64_t column) const {
    if (problem_.has_bias()) value += Load(bias_, type_, row);
    const int64_t place = column * problem_.description.aux_ld + row;
    if (problem_.has_gelu_gradient()) return value * GeluDerivative(Load(aux_, type_, place));
    if (!problem_.has_gelu()) return value;
    if (problem_.has_aux()) Store(aux_, type_, place, value);
    return Gelu(value);
  }

  // The gradient of a bias: sums over k.
  void StoreSums(const Matrix& b) const {
    const int64_t k = problem_.k();
    for (int64_t i = 0; i < problem_.bias_count(); ++i) {
      const auto first = b.begin() + i * k;
      Store(bias_, type_, i, std::accumulate(first, first + k, 0.0f));
    }
  }

 private:
  const Problem& problem_;
  const uint32_t type_;
  void* const bias_;
  void* const aux_;
};

void MultiplyOne(const Problem& p, const Operands& operands, int parts) {
  const int64_t m = p.m(), n = p.n(), k = p.k();
  const bool tf32 = p.description.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const Matrix a = Pack(operands.a, p.a, p.description.transposed_a != CUBLAS_OP_N, tf32);
  const Matrix b = Pack(operands.b, p.b, p.description.transposed_b != CUBLAS_OP_N, tf32);
  Matrix results(static_cast<size_t>(m * n));
  for (int part = 0; part < parts; ++part) {
    Matrix sums(results.size());
    AddProduct(m, n, k, k * part / parts, k * (part + 1) / parts, a.data(), b.data(), sums.data());
    for (size_t i = 0; i < results.size(); ++i) results[i] += sums[i];
  }

  const Epilogue epilogue(p);
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t row = 0; row < m; ++row) {
      float& result = results[static_cast<size_t>(column * m + row)];
      float value = operands.alpha * result;
      if (operands.beta != 0)
        value += operands.beta * Load(operands.c, p.c.type, column * p.c.ld + row);
      result = epilogue.Apply(value, row, column);
      Store(operands.d, p.d.type, column * p.d.ld + row, result);
    }
  }
  if (p.sums_b()) epilogue.StoreSums(b);
}

// To the next matrix of a batch.
template <typename Data>
void Advance(const MatrixLayout& layout, Data** data) {
  using Byte = std::conditional_t<std::is_const_v<Data>, const std::byte, std::byte>;
  *data = static_cast<Byte*>(*data) + layout.stride * static_cast<int64_t>(SizeOf(layout.type));
}

}  // namespace

void Multiply(const Problem& p, const Operands& operands, int parts) {
  Operands at = operands;
  for (int32_t i = 0; i < p.d.batch; ++i) {
    MultiplyOne(p, at, parts);
    Advance(p.a, &at.a);
    Advance(p.b, &at.b);
    Advance(p.c, &at.c);
    Advance(p.d, &at.d);
  }
}

}  // namespace emulated_cuda
