// linear: y = x W^T + b. tied_linear: the same with a second data input as W and no b. linear_gelu:
// y = gelu(x W^T + b).
//
// In bfloat16 an x in float32 (the batch itself) is rounded first; the copy is saved. linear_gelu
// saves what gelu is applied to.
#include <algorithm>
#include <new>

#include "blas.h"
#include "kernels/bias.h"
#include "kernels/elementwise.h"
#include "kernels/flat_math.h"
#include "ops.h"

namespace engine::cuda_ops {
namespace {

constexpr int64_t kAlignment = 256;  // of parts of saved memory and workspace

int64_t Aligned(int64_t bytes) noexcept {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void* Offset(void* memory, int64_t bytes) noexcept {
  return static_cast<char*>(memory) + bytes;
}

// Inputs are x (..., K), weight (N, K) and, maybe, bias (N).
class LinearOp : public CudaOp {
 public:
  LinearOp(const OpContext& context, bool gelu) noexcept : CudaOp(context), gelu_(gelu) {}

 protected:
  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  // What all have in common once the number of units is known.
  void Describe(const TensorSpec& x, int64_t units, OpSignature* signature) noexcept {
    rounds_x_ = !IsActivation(x);
    const int64_t rows = x.shape.Count(0, -1), width = x.shape[-1];
    const int64_t rounded_bytes = rounds_x_ ? Aligned(ActivationBytes(rows * width)) : 0;
    const int64_t y_bytes = gelu_ ? Aligned(ActivationBytes(rows * units)) : 0;
    signature->saved_bytes = rounded_bytes + y_bytes;
    signature->workspace_bytes = std::max(
        rounded_bytes, y_bytes + Parts(rows, units) * units * static_cast<int64_t>(sizeof(float)));
    if (rounds_x_) signature->backward_reads_inputs = 1u << kWeight;
  }

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Sizes sizes(call);
    if (sizes.rows == 0) return {};
    MatrixOperands operands = {.b = call.inputs[kWeight].data, .d = call.outputs[0].data};
    ENGINE_RETURN_IF_ERROR(RoundX(call, sizes, stream, &operands.a));
    MatrixProduct product = Product(sizes.rows, sizes.units, sizes.width, activation());
    product.b_transposed = true;
    if (call.inputs.size() > kBias) {
      product.epilogue = Epilogue::kBias;
      operands.bias = call.inputs[kBias].data;
    }
    void* const before = call.saved == nullptr ? nullptr : Before(call.saved, sizes);
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      return gelu_ ? MultiplyGelu<T>(product, operands, before, stream)
                   : MultiplyBias<T>(product, operands, stream);
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Sizes sizes(call);
    if (sizes.rows == 0) {
      ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kWeight, stream));
      return ZeroGradient(call, kBias, stream);
    }
    const void* dy = call.output_grads[0].data;
    ENGINE_RETURN_IF_ERROR(WithElement(activation(), [&](auto element) {
      return SumBias<decltype(element)>(call, sizes, stream, &dy);
    }));
    if (WantsGradient(call, kWeight)) {
      MatrixProduct product = Product(sizes.units, sizes.width, sizes.rows, DType::kFloat32);
      product.a_transposed = true;
      product.sum = Accumulates(call, kWeight);
      ENGINE_RETURN_IF_ERROR(Multiply(product,
                                      {.a = dy,
                                       .b = rounds_x_ ? call.saved : call.inputs[kX].data,
                                       .d = call.input_grads[kWeight].data},
                                      stream));
    }
    if (!WantsGradient(call, kX)) return {};
    MatrixProduct product =
        Product(sizes.rows, sizes.width, sizes.units, call.input_grads[kX].dtype);
    product.sum = Accumulates(call, kX);
    return Multiply(
        product, {.a = dy, .b = call.inputs[kWeight].data, .d = call.input_grads[kX].data}, stream);
  }

 private:
  struct Sizes {
    int64_t rows, width, units;

    explicit Sizes(const OpCall& call) noexcept
        : rows(call.inputs[kX].shape.Count(0, -1)),
          width(call.inputs[kX].shape[-1]),
          units(call.inputs[kWeight].shape[0]) {}
  };

  int64_t ActivationBytes(int64_t count) const noexcept {
    return count * static_cast<int64_t>(SizeOf(activation()));
  }
  int64_t Parts(int64_t rows, int64_t units) const noexcept {
    return ColumnParts(rows, units, device().multiprocessors());
  }

  // Saved memory: x rounded, if it is, and what gelu is applied to.
  void* Before(void* saved, const Sizes& sizes) const noexcept {
    return Offset(saved, rounds_x_ ? Aligned(ActivationBytes(sizes.rows * sizes.width)) : 0);
  }

  MatrixProduct Product(int64_t m, int64_t n, int64_t k, DType result) const noexcept {
    return {.m = m, .n = n, .k = k, .factors = activation(), .result = result};
  }

  Status Multiply(const MatrixProduct& product, const MatrixOperands& operands,
                  cudaStream_t stream) const noexcept {
    return blas().Multiply(product, operands, stream).WithContext("%s", name());
  }

  // x as a factor. In evaluation nothing is saved.
  Status RoundX(const OpCall& call, const Sizes& sizes, cudaStream_t stream,
                const void** out) const noexcept {
    *out = call.inputs[kX].data;
    if (!rounds_x_) return {};
    void* const rounded = call.saved != nullptr ? call.saved : call.workspace;
    *out = rounded;
    return Launched(
        LaunchConvert(static_cast<const float*>(call.inputs[kX].data),
                      static_cast<__nv_bfloat16*>(rounded), sizes.rows * sizes.width, stream),
        "rounding the input");
  }

  // y = x W^T (+ b). Where the library cannot add a bias (as it multiplies matrices of this width),
  // the product is added to one.
  template <typename T>
  Status MultiplyBias(MatrixProduct product, MatrixOperands operands,
                      cudaStream_t stream) const noexcept {
    if (product.epilogue == Epilogue::kNone) return Multiply(product, operands, stream);
    ENGINE_ASSIGN_OR_RETURN(const bool supported, blas().Supports(product, operands));
    if (supported) return Multiply(product, operands, stream);
    ENGINE_RETURN_IF_ERROR(
        Launched(LaunchFillRows(static_cast<const T*>(operands.bias), static_cast<T*>(operands.d),
                                product.m, product.n, stream),
                 "adding the bias"));
    product.epilogue = Epilogue::kNone;
    product.sum = true;
    operands.bias = nullptr;
    return Multiply(product, operands, stream);
  }

  // The gelu of the library's epilogue is made for bfloat16: it may take the machine's approximate
  // tanh. Before Hopper it was found to be slower than a kernel of its own (llm.c).
  bool FusesGelu() const noexcept {
    return precision() == Precision::kBFloat16 && device().capability() >= 90;
  }

  // `before` is null in evaluation.
  template <typename T>
  Status MultiplyGelu(const MatrixProduct& product, MatrixOperands operands, void* before,
                      cudaStream_t stream) const noexcept {
    if (product.epilogue == Epilogue::kBias && FusesGelu()) {
      MatrixProduct fused = product;
      fused.epilogue = before != nullptr ? Epilogue::kGeluAuxBias : Epilogue::kGeluBias;
      operands.aux = before;
      ENGINE_ASSIGN_OR_RETURN(const bool supported, blas().Supports(fused, operands));
      if (supported) return Multiply(fused, operands, stream);
      operands.aux = nullptr;
    }
    T* const y = static_cast<T*>(operands.d);
    if (before != nullptr) operands.d = before;
    ENGINE_RETURN_IF_ERROR(MultiplyBias<T>(product, operands, stream));
    return Launched(LaunchFunction<GeluFunction>(static_cast<const T*>(operands.d), y,
                                                 product.m * product.n, stream),
                    "gelu");
  }

  // The gradient of the bias, and with gelu that of what it is applied to, which `dy` becomes.
  template <typename T>
  Status SumBias(const OpCall& call, const Sizes& sizes, cudaStream_t stream,
                 const void** dy) const noexcept {
    const bool bias = WantsGradient(call, kBias);
    const int64_t parts = Parts(sizes.rows, sizes.units);
    const T* const gradient = static_cast<const T*>(*dy);
    float* partials = static_cast<float*>(call.workspace);
    if (gelu_) {
      T* const through = static_cast<T*>(call.workspace);
      partials = static_cast<float*>(
          Offset(call.workspace, Aligned(ActivationBytes(sizes.rows * sizes.units))));
      ENGINE_RETURN_IF_ERROR(Launched(
          LaunchGeluGradient(static_cast<const T*>(Before(call.saved, sizes)), gradient, through,
                             sizes.rows, sizes.units, bias ? partials : nullptr, parts, stream),
          "the gradient of gelu"));
      *dy = through;
    } else if (bias) {
      ENGINE_RETURN_IF_ERROR(
          Launched(LaunchColumnSums(gradient, sizes.rows, sizes.units, partials, parts, stream),
                   "the gradient of the bias"));
    }
    if (!bias) return {};
    return Launched(LaunchAddParts(partials, parts, sizes.units, sizes.units,
                                   call.input_grads[kBias].f32(), Accumulates(call, kBias), stream),
                    "the gradient of the bias");
  }

  const bool gelu_;
  bool rounds_x_ = false;
};

class OwnedLinearOp final : public LinearOp {
 public:
  OwnedLinearOp(const OpContext& context, const Options& attributes, bool gelu) noexcept
      : LinearOp(context, gelu), given_(attributes) {}

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferLinear(Inferring(inputs, signature), given_));
    Describe(inputs[kX], given_.units, signature);
    return {};
  }

 private:
  const kit::LinearAttributes given_;
};

class TiedLinearOp final : public LinearOp {
 public:
  explicit TiedLinearOp(const OpContext& context) noexcept : LinearOp(context, false) {}

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferTiedLinear(Inferring(inputs, signature)));
    Describe(inputs[kX], inputs[kWeight].shape[0], signature);
    return {};
  }
};

}  // namespace

Op* MakeLinear(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) OwnedLinearOp(context, attributes, false);
}

Op* MakeLinearGelu(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) OwnedLinearOp(context, attributes, true);
}

Op* MakeTiedLinear(const OpContext& context, const Options&) noexcept {
  return new (std::nothrow) TiedLinearOp(context);
}

}  // namespace engine::cuda_ops
