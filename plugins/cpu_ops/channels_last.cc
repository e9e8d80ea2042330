// to_channels_last: (B, C, H, W), planes as datasets have them, to (B, H, W, C). to_channels_first:
// back. Each sample is a matrix that is transposed. flatten: (B, ...) to (B, product of the rest),
// which as a matrix has one row. With one row or column the result is another shape for the same
// memory.

#include "cpu_op.h"
#include "kit/image_op_shapes.h"
#include "parallel.h"
#include "small_gemm.h"

namespace engine::cpu_ops {
namespace {

enum class To { kFlat, kChannelsLast, kChannelsFirst };

template <To kTo>
class ReshapeOp final : public CpuOp {
 public:
  using CpuOp::CpuOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    takes_bfloat16_ = true;
    if (kTo == To::kFlat) return kit::InferFlatten(inference);
    ENGINE_RETURN_IF_ERROR(kTo == To::kChannelsLast ? kit::InferToChannelsLast(inference)
                                                    : kit::InferToChannelsFirst(inference));
    const Shape& x = inputs[0].shape;
    rows_ = kTo == To::kChannelsLast ? x[1] : x[1] * x[2];
    columns_ = x.Count(1) / rows_;
    if (signature->output_is_view_of == 0) rows_ = 1;
    takes_bfloat16_ = rows_ == 1;
    return {};
  }
  bool TakesBFloat16() const noexcept override { return takes_bfloat16_; }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    if (rows_ == 1) {
      const TensorView &x = call.inputs[0], &y = call.outputs[0];
      if (x.dtype != y.dtype) Convert(x, y);
      return {};
    }
    const float* x = call.inputs[0].f32();
    float* y = call.outputs[0].f32();
    ForRows(call.inputs[0].shape[0], size(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Transpose({x + i * size(), columns_}, rows_, columns_, y + i * size(), rows_);
      }
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView& dx = call.input_grads[0];
    const bool sum = Accumulates(call, 0);
    if (rows_ == 1) {
      PassGradient(call.output_grads[0], dx, sum);
      return {};
    }
    const float* dy = call.output_grads[0].f32();
    ForRows(dx.shape[0], size(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Transpose({dy + i * size(), rows_}, columns_, rows_, {dx.f32() + i * size(), columns_},
                  sum);
      }
    });
    return {};
  }

  int64_t size() const noexcept { return rows_ * columns_; }

  int64_t rows_ = 1, columns_ = 0;  // 1 row: the output is a view, or rounds x
  bool takes_bfloat16_ = false;
};

}  // namespace

const OpFactory kMakeFlatten = kit::NewOp<ReshapeOp<To::kFlat>>;
const OpFactory kMakeToChannelsLast = kit::NewOp<ReshapeOp<To::kChannelsLast>>;
const OpFactory kMakeToChannelsFirst = kit::NewOp<ReshapeOp<To::kChannelsFirst>>;

}  // namespace engine::cpu_ops
