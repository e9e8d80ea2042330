// linear: y = x W^T + b. tied_linear: the same with a second data input as W and no b.
//
// All three products are oneDNN's sgemm. Its matmul primitives with packed weights are not faster
// here, as the weights change every step and would be packed again for one use.
#include <dnnl.h>

#include <cstring>
#include <span>

#include "channel_kernels.h"
#include "cpu_op.h"
#include "parallel.h"

namespace engine::cpu_ops {
namespace {

// A row-major matrix as an operand: op(data) where `transposed` swaps its two dimensions.
struct Operand {
  const float* data;
  bool transposed;
};

// c (m, n) = a (m, k) b (k, n), or += when `sum`.
Status Gemm(const char* op, int64_t m, int64_t n, int64_t k, Operand a, Operand b, float* c,
            bool sum) noexcept {
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data,
                 a.transposed ? m : k, b.data, b.transposed ? k : n, sum ? 1.0f : 0.0f, c, n);
  if (status == dnnl_success) return {};
  return Status::Error(
      status == dnnl_out_of_memory ? StatusCode::kResourceExhausted : StatusCode::kInternal,
      "%s: oneDNN refused a product of (%lld, %lld) and (%lld, %lld), status %d", op,
      static_cast<long long>(m), static_cast<long long>(k), static_cast<long long>(k),
      static_cast<long long>(n), static_cast<int>(status));
}

// Every row of y (rows, width) becomes `bias`.
void FillRows(const float* bias, float* y, int64_t rows, int64_t width) noexcept {
  ForRows(rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(y + row * width, bias, static_cast<size_t>(width) * sizeof(float));
    }
  });
}

// Inputs are x (..., K), weight (N, K) and, maybe, bias (N).
class LinearOp : public CpuOp {
 public:
  using CpuOp::CpuOp;

 protected:
  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  Status DoForward(const OpCall& call) noexcept override {
    const Sizes sizes(call);
    if (sizes.rows == 0) return {};
    float* y = call.outputs[0].f32();
    const bool bias = call.inputs.size() > kBias;
    if (bias) FillRows(call.inputs[kBias].f32(), y, sizes.rows, sizes.units);
    return Gemm(name(), sizes.rows, sizes.units, sizes.width, {call.inputs[kX].f32(), false},
                {call.inputs[kWeight].f32(), true}, y, bias);
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const Sizes sizes(call);
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
    if (WantsGradient(call, kWeight)) {
      ENGINE_RETURN_IF_ERROR(Gemm(name(), sizes.units, sizes.width, sizes.rows, {dy, true},
                                  {call.inputs[kX].f32(), false}, call.input_grads[kWeight].f32(),
                                  Accumulates(call, kWeight)));
    }
    if (!WantsGradient(call, kX)) return {};
    return Gemm(name(), sizes.rows, sizes.width, sizes.units, {dy, false},
                {call.inputs[kWeight].f32(), false}, call.input_grads[kX].f32(),
                Accumulates(call, kX));
  }

 private:
  struct Sizes {
    int64_t rows, width, units;

    explicit Sizes(const OpCall& call) noexcept
        : rows(call.inputs[kX].shape.Count(0, -1)),
          width(call.inputs[kX].shape[-1]),
          units(call.inputs[kWeight].shape[0]) {}
  };
};

class OwnedLinearOp final : public LinearOp {
 public:
  OwnedLinearOp(const OpContext& context, const Options& attributes) noexcept
      : LinearOp(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferLinear(Inferring(inputs, signature), given_);
  }

 private:
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
