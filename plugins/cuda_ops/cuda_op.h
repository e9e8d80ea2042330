// What the ops of this plugin share, and what makes them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda_device.h"
#include "engine/op.h"
#include "kit/op.h"
#include "kit/op_library.h"
#include "kit/op_shapes.h"

namespace engine::cuda_ops {

// How numbers are held and multiplied. kTf32: as kFloat32, with factors of matrix products rounded
// to 10 bits. kBFloat16: activations and their gradients, and the matrices among the parameters
// (ParameterSpec::dtype), in bfloat16; sums, statistics, norm parameters, parameter gradients and
// losses in float32.
enum class Precision : int32_t { kFloat32 = 0, kTf32 = 1, kBFloat16 = 2 };

class AttentionPlans;
class Blas;
class Cudnn;

// What an op is made with, besides its attributes.
struct OpContext {
  const char* name = "";         // of the op, static lifetime
  CudaDevice* device = nullptr;  // outlives the op, as blas and cudnn
  Blas* blas = nullptr;
  Cudnn* cudnn = nullptr;  // opened by the first op that needs it
  Precision precision = Precision::kFloat32;
  AttentionPlans* attention = nullptr;  // null: our own kernels
};

// Every op but its arithmetic. Makes the device the current one of the calling thread; a call on
// empty tensors is given to the op like any other. Calls only queue work: no op waits for the
// device or allocates once a step of its size has been run.
class CudaOp : public OpBase {
 public:
  explicit CudaOp(const OpContext& context) noexcept : context_(context) {}

  Status Forward(const OpCall& call) noexcept final;
  Status Backward(const OpCall& call) noexcept final;

 protected:
  virtual Status DoForward(const OpCall& call, cudaStream_t stream) noexcept = 0;
  virtual Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept = 0;

  const char* name() const noexcept { return context_.name; }
  CudaDevice& device() const noexcept { return *context_.device; }
  Blas& blas() const noexcept { return *context_.blas; }
  Cudnn& cudnn() const noexcept { return *context_.cudnn; }
  AttentionPlans* attention_plans() const noexcept { return context_.attention; }
  Precision precision() const noexcept { return context_.precision; }

  // The dtype of activations, and of parameters that are matrices: kFloat32 or kBFloat16.
  DType activation() const noexcept {
    return context_.precision == Precision::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
  }
  // Whether `spec` is an activation of this run. In bfloat16 the batch itself is float32 all the
  // same: the ops that models begin with (linear, flatten, to_channels_last) take both, and give
  // out activations.
  bool IsActivation(const TensorSpec& spec) const noexcept { return spec.dtype == activation(); }

  // The error of a launch, with the name of the op.
  Status Launched(cudaError_t error, const char* kernel) const noexcept;

  // A call of Infer, for what this op has in common with those of other devices.
  kit::Inference Inferring(Array<const TensorSpec> inputs, OpSignature* signature) const noexcept {
    return {name(), activation(), inputs, signature};
  }

  const OpContext& context() const noexcept { return context_; }

 private:
  const OpContext context_;
};

// The data of a tensor whose element is T.
template <typename T>
T* As(const TensorView& view) noexcept {
  return static_cast<T*>(view.data);
}

// Parts of saved memory and of workspaces begin at multiples of this.
constexpr int64_t AlignedBytes(int64_t bytes) noexcept {
  constexpr int64_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

using kit::Accumulates;
using kit::WantsGradient;

// The gradient of a call without samples: zeros, unless it is added to or not wanted.
Status ZeroGradient(const OpCall& call, int32_t input, cudaStream_t stream) noexcept;

// float or __nv_bfloat16, by the dtype of an activation: calls function(T{}) with it.
template <typename Function>
auto WithElement(DType dtype, Function&& function) noexcept {
  return dtype == DType::kBFloat16 ? function(__nv_bfloat16{}) : function(float{});
}

using OpFactory = kit::OpFactory<OpContext>;

// For an op whose input gradient equals its output gradient: copies or adds `source` to `target`,
// or does nothing when they are the same memory. Both are activations.
Status PassGradient(const TensorView& source, const TensorView& target, bool sum,
                    cudaStream_t stream) noexcept;
// The same for the gradient of `input`, unless nobody wants it.
Status PassGradient(const OpCall& call, const TensorView& source, int32_t input,
                    cudaStream_t stream) noexcept;

// The op "attention", for another op; null when memory is out.
Op* NewAttention(const OpContext& context, int64_t heads, bool causal) noexcept;

ENGINE_KIT_EACH_OP(ENGINE_KIT_DECLARE_OP)
extern const OpFactory kMakeAddLayerNorm, kMakeMlp;

}  // namespace engine::cuda_ops
