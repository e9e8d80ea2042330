// linear: y = x W^T + b, or y = x W + b where W is transposed. tied_linear: the same with a second
// data input as W and no b.
#include "channel_kernels.h"
#include "cpu_op.h"
#include "products.h"

namespace engine::cpu_ops {
namespace {

// Inputs are x (..., K), weight (N, K), or (K, N) if `transposed`, and, maybe, bias (N).
class LinearOp : public CpuOp {
 public:
  explicit LinearOp(const OpContext& context, bool transposed = false) noexcept
      : CpuOp(context), transposed_(transposed) {}

  bool TakesBFloat16() const noexcept override { return true; }

 protected:
  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  // Of the workspace: for an x in float32, the batch itself, in a run of bfloat16.
  int64_t CopyBytes(const TensorSpec& x) const noexcept {
    return x.dtype == activation() ? 0
                                   : x.shape.Count() * static_cast<int64_t>(SizeOf(activation()));
  }

  Status DoForward(const OpCall& call) noexcept override {
    const Sizes sizes(call, transposed_);
    if (sizes.rows == 0) return {};
    const TensorView& y = call.outputs[0];
    Product product = Of({sizes.rows, sizes.units, sizes.width}, false, !transposed_);
    product.bias = call.inputs.size() > kBias;
    product.result = y.dtype;
    return Multiply(product, X(call), call.inputs[kWeight].data,
                    product.bias ? call.inputs[kBias].data : nullptr, y.data);
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const Sizes sizes(call, transposed_);
    if (sizes.rows == 0) {
      ZeroGradient(call, kWeight);
      ZeroGradient(call, kBias);
      return {};
    }
    const TensorView& dy = call.output_grads[0];
    if (WantsGradient(call, kBias)) {
      WithElement(activation(), [&]<typename T>(T) {
        SumColumns(As<const T>(dy), sizes.rows, sizes.units, call.input_grads[kBias].f32(),
                   Accumulates(call, kBias));
      });
    }
    if (WantsGradient(call, kWeight)) {
      const void *x = X(call), *a = transposed_ ? x : dy.data, *b = transposed_ ? dy.data : x;
      const int64_t rows = transposed_ ? sizes.width : sizes.units;
      const int64_t columns = transposed_ ? sizes.units : sizes.width;
      Product product = Of({rows, columns, sizes.rows}, true, false);
      product.sum = Accumulates(call, kWeight);
      ENGINE_RETURN_IF_ERROR(Multiply(product, a, b, nullptr, call.input_grads[kWeight].data));
    }
    if (!WantsGradient(call, kX)) return {};
    Product product = Of({sizes.rows, sizes.width, sizes.units}, false, transposed_);
    product.sum = Accumulates(call, kX);
    product.result = call.input_grads[kX].dtype;
    return Multiply(product, dy.data, call.inputs[kWeight].data, nullptr,
                    call.input_grads[kX].data);
  }

 private:
  struct Sizes {
    int64_t rows, width, units;

    Sizes(const OpCall& call, bool transposed) noexcept
        : rows(call.inputs[kX].shape.Count(0, -1)),
          width(call.inputs[kX].shape[-1]),
          units(call.inputs[kWeight].shape[transposed ? 1 : 0]) {}
  };

  Product Of(const GemmSizes& sizes, bool a_transposed, bool b_transposed) const noexcept {
    return {.sizes = sizes,
            .a_transposed = a_transposed,
            .b_transposed = b_transposed,
            .factors = activation()};
  }

  // As an activation.
  const void* X(const OpCall& call) const noexcept {
    const TensorView& x = call.inputs[kX];
    if (x.dtype == activation()) return x.data;
    Convert(x, {call.workspace, x.shape, activation()});
    return call.workspace;
  }

  Status Multiply(const Product& product, const void* a, const void* b, const void* bias,
                  void* c) noexcept {
    return products_.Multiply(name(), product, a, b, bias, c);
  }

  const bool transposed_;
  Products products_;
};

class OwnedLinearOp final : public LinearOp {
 public:
  OwnedLinearOp(const OpContext& context, const Options& attributes) noexcept
      : OwnedLinearOp(context, kit::LinearAttributes(attributes)) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferLinear(Inferring(inputs, signature), given_));
    signature->workspace_bytes = CopyBytes(inputs[kX]);
    return {};
  }

 private:
  OwnedLinearOp(const OpContext& context, const kit::LinearAttributes& given) noexcept
      : LinearOp(context, given.transposed), given_(given) {}

  const kit::LinearAttributes given_;
};

class TiedLinearOp final : public LinearOp {
 public:
  using LinearOp::LinearOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferTiedLinear(Inferring(inputs, signature)));
    signature->workspace_bytes = CopyBytes(inputs[kX]);
    return {};
  }
};

}  // namespace

const OpFactory kMakeLinear = kit::NewOp<OwnedLinearOp>;
const OpFactory kMakeTiedLinear = kit::NewOp<TiedLinearOp>;

}  // namespace engine::cpu_ops
