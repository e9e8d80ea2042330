// Products of matrices of float32 or bfloat16 with what an op of a linear layer needs beside them.
#pragma once

#include <memory>

#include "engine/status.h"
#include "engine/tensor.h"
#include "gemm.h"

namespace engine::cpu_ops {

// c (m, n) = a (m, k) b (k, n) + bias (n), or += where `sum`. a and b, whose memory has these shapes
// or, transposed, the other way round, and the bias are `factors`, float32 or bfloat16; c is `result`,
// the same or float32.
struct Product {
  GemmSizes sizes;
  bool a_transposed = false, b_transposed = false;
  bool sum = false, bias = false;
  DType factors = DType::kFloat32, result = DType::kFloat32;

  bool operator==(const Product&) const = default;
};

// The products of one op: gemm.h's, or matmul primitives of oneDNN, made by the first call of a shape.
// Sums are float32 and rounded once, but for what is added to a c in bfloat16. Called by one thread
// at a time.
class Products {
 public:
  Products();
  ~Products();

  Status Multiply(const char* op, const Product& product, const void* a, const void* b,
                  const void* bias, void* c) noexcept;

 private:
  struct Primitives;
  std::unique_ptr<Primitives> primitives_;
};

// Whether oneDNN multiplies bfloat16 by instructions of this processor.
bool HasBFloat16Products() noexcept;

}  // namespace engine::cpu_ops
