// linear: y = x W^T + b, or y = x W + b where W is transposed. tied_linear: the same with a second
// data input as W and no b.
#include <cstring>
#include <span>

#include "channel_kernels.h"
#include "cpu_op.h"
#include "gemm.h"
#include "parallel.h"

namespace engine::cpu_ops {
namespace {

// Every row of y (rows, width) becomes `bias`.
void FillRows(const float* bias, float* y, int64_t rows, int64_t width) noexcept {
  ForRows(rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(y + row * width, bias, static_cast<size_t>(width) * sizeof(float));
    }
  });
}

// Inputs are x (..., K), weight (N, K), or (K, N) if `transposed`, and, maybe, bias (N).
class LinearOp : public CpuOp {
 public:
  explicit LinearOp(const OpContext& context, bool transposed = false) noexcept
      : CpuOp(context), transposed_(transposed) {}

 protected:
  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  Status DoForward(const OpCall& call) noexcept override {
    const Sizes sizes(call, transposed_);
    if (sizes.rows == 0) return {};
    float* y = call.outputs[0].f32();
    const bool bias = call.inputs.size() > kBias;
    if (bias) FillRows(call.inputs[kBias].f32(), y, sizes.rows, sizes.units);
    return Gemm(name(), {sizes.rows, sizes.units, sizes.width}, {call.inputs[kX].f32(), false},
                {call.inputs[kWeight].f32(), !transposed_}, y, bias);
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const Sizes sizes(call, transposed_);
    if (sizes.rows == 0) {
      ZeroGradient(call, kWeight);
      ZeroGradient(call, kBias);
      return {};
    }
    const float* dy = call.output_grads[0].f32();
    if (WantsGradient(call, kBias)) {
      SumColumns(dy, sizes.rows, sizes.units, call.input_grads[kBias].f32(),
                 Accumulates(call, kBias));
    }
    const Operand x = {call.inputs[kX].f32(), transposed_};
    if (WantsGradient(call, kWeight)) {
      const int64_t rows = transposed_ ? sizes.width : sizes.units;
      const int64_t columns = transposed_ ? sizes.units : sizes.width;
      const Operand gradient = {dy, !transposed_};
      ENGINE_RETURN_IF_ERROR(Gemm(name(), {rows, columns, sizes.rows}, transposed_ ? x : gradient,
                                  transposed_ ? gradient : x, call.input_grads[kWeight].f32(),
                                  Accumulates(call, kWeight)));
    }
    if (!WantsGradient(call, kX)) return {};
    return Gemm(name(), {sizes.rows, sizes.width, sizes.units}, {dy, false},
                {call.inputs[kWeight].f32(), transposed_}, call.input_grads[kX].f32(),
                Accumulates(call, kX));
  }

 private:
  struct Sizes {
    int64_t rows, width, units;

    Sizes(const OpCall& call, bool transposed) noexcept
        : rows(call.inputs[kX].shape.Count(0, -1)),
          width(call.inputs[kX].shape[-1]),
          units(call.inputs[kWeight].shape[transposed ? 1 : 0]) {}
  };

  const bool transposed_;
};

class OwnedLinearOp final : public LinearOp {
 public:
  OwnedLinearOp(const OpContext& context, const Options& attributes) noexcept
      : OwnedLinearOp(context, kit::LinearAttributes(attributes)) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferLinear(Inferring(inputs, signature), given_);
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
    return kit::InferTiedLinear(Inferring(inputs, signature));
  }
};

}  // namespace

const OpFactory kMakeLinear = kit::NewOp<OwnedLinearOp>;
const OpFactory kMakeTiedLinear = kit::NewOp<TiedLinearOp>;

}  // namespace engine::cpu_ops
