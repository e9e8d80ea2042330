// A convolution of activations and weights in bfloat16, by primitives of oneDNN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "conv_pass.h"
#include "engine/status.h"
#include "simd.h"

namespace engine::cpu_ops {

// Tensors and layouts of weights are those of Convolution. Called by one thread at a time; `workspace`
// is workspace_bytes().
class ConvPrimitives {
 public:
  ConvPrimitives(const ConvGeometry& geometry, bool oihw, bool bias, int32_t threads);
  ~ConvPrimitives();

  // Makes what calls with at most so many samples need. False where oneDNN has nothing but its
  // reference code for this convolution, or nothing at all.
  bool Prepare(int64_t samples) noexcept;
  size_t workspace_bytes() const noexcept { return workspace_bytes_; }

  // y = x * weight + bias
  Status Forward(const char* op, int64_t samples, const BFloat16* x, const BFloat16* weight,
                 const BFloat16* bias, BFloat16* y, void* workspace) noexcept;
  // dx, or dweight in float32, from dy; added when `sum`.
  Status BackwardData(const char* op, int64_t samples, const BFloat16* dy, const BFloat16* weight,
                      BFloat16* dx, bool sum, void* workspace) noexcept;
  Status BackwardWeights(const char* op, int64_t samples, const BFloat16* x, const BFloat16* dy,
                         float* dweight, bool sum, void* workspace) noexcept;

 private:
  struct Passes;
  struct Made;

  // Of a number of samples, made by the first call with it.
  Passes& Find(int64_t samples);

  const ConvGeometry conv_;
  const bool oihw_, bias_;
  const int32_t threads_;
  size_t workspace_bytes_ = 0;
  std::unique_ptr<Made> made_;
};

}  // namespace engine::cpu_ops
