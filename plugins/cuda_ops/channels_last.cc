// to_channels_last: (B, C, H, W), planes as datasets have them, to (B, H, W, C); to_channels_first:
// back. flatten: (B, ...) to (B, product of the rest); reshape: to any shape; for these all are
// positions of one channel. With one channel the result is another shape for the same memory, but a
// float32 batch of a bfloat16 run is rounded on the way.
#include <optional>

#include "cuda_op.h"
#include "kernels/channels.h"
#include "kit/array_move_shapes.h"
#include "kit/image_op_shapes.h"

namespace engine::cuda_ops {
namespace {

enum class Kind { kFlatten, kReshape, kChannelsLast, kChannelsFirst };

template <Kind kKind>
class ReshapeOp final : public CudaOp {
 public:
  ReshapeOp(const OpContext& context, const Options& attributes) noexcept : CudaOp(context) {
    if constexpr (kKind == Kind::kReshape) shape_.emplace(attributes);
  }

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference op = Inferring(inputs, signature);
    ENGINE_RETURN_IF_ERROR(kKind == Kind::kFlatten        ? kit::InferFlatten(op)
                           : kKind == Kind::kReshape      ? shape_->Infer(op)
                           : kKind == Kind::kChannelsLast ? kit::InferToChannelsLast(op)
                                                          : kit::InferToChannelsFirst(op));
    const Shape& x = inputs[0].shape;
    if constexpr (kKind == Kind::kChannelsLast) {
      rows_ = x[1];
      columns_ = x.Count(2);
    } else if constexpr (kKind == Kind::kChannelsFirst) {
      rows_ = x.Count(1, -1);
      columns_ = x[3];
    } else {
      columns_ = inputs[0].batched != 0 ? x.Count(1) : x.Count();
    }
    is_view_ = signature->output_is_view_of == 0;
    return {};
  }

 private:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (is_view_) return {};
    return Transpose(call.inputs[0], call.outputs[0], rows_, columns_, false, stream);
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView& dy = call.output_grads[0];
    const TensorView& dx = call.input_grads[0];
    if (is_view_) return PassGradient(dy, dx, Accumulates(call, 0), stream);
    return Transpose(dy, dx, columns_, rows_, Accumulates(call, 0), stream);
  }

  // Matrices of rows x columns, one per sample, to their transposes.
  Status Transpose(const TensorView& from, const TensorView& to, int64_t rows, int64_t columns,
                   bool sum, cudaStream_t stream) const noexcept {
    return WithElement(from.dtype, [&](auto source) {
      return WithElement(to.dtype, [&](auto target) {
        return Launched(
            LaunchTranspose(As<const decltype(source)>(from), As<decltype(target)>(to),
                            from.count() / (rows * columns), rows, columns, sum, stream),
            "transposition");
      });
    });
  }

  std::optional<kit::ReshapeRule> shape_;
  int64_t rows_ = 1, columns_ = 1;  // of the matrix that each sample is
  bool is_view_ = false;
};

}  // namespace

const OpFactory kMakeFlatten = kit::NewOp<ReshapeOp<Kind::kFlatten>>;
const OpFactory kMakeReshape = kit::NewOp<ReshapeOp<Kind::kReshape>>;
const OpFactory kMakeToChannelsLast = kit::NewOp<ReshapeOp<Kind::kChannelsLast>>;
const OpFactory kMakeToChannelsFirst = kit::NewOp<ReshapeOp<Kind::kChannelsFirst>>;

}  // namespace engine::cuda_ops
