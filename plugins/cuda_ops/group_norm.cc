// group_norm as kit/image_op_shapes.h has it. Saved for backward: mean and 1 / deviation of each.
#include "kernels/group_norm.h"

#include "cuda_op.h"
#include "kernels/channels.h"
#include "kit/image_op_shapes.h"

namespace engine::cuda_ops {
namespace {

class GroupNormOp final : public kit::ShapedOp<CudaOp, kit::GroupNormRule> {
  using ShapedOp::ShapedOp;

  // The workspace: statistics where nothing is saved, means; sums.
  Status Plan(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const Shape& x = inputs[kX].shape;
    signature->saved_bytes = StatisticsBytes(x[0]);
    signature->workspace_bytes =
        StatisticsBytes(x[0]) + 2 * x[0] * x[-1] * static_cast<int64_t>(sizeof(float));
    return {};
  }

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& y = call.outputs[0];
    void* const statistics = call.saved != nullptr ? call.saved : call.workspace;
    return WithElement(y.dtype, [&]<typename T>(T) {
      return Launched(LaunchGroupNorm(ShapeOf(y.shape), As<const T>(call.inputs[kX]),
                                      call.inputs[kWeight].f32(), call.inputs[kBias].f32(),
                                      As<T>(y), static_cast<RowStatistics*>(statistics), stream),
                      "forward");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&]<typename T>(T) { return BackwardOf<T>(call, stream); });
  }

  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  int64_t StatisticsBytes(int64_t samples) const noexcept {
    return AlignedBytes(samples * given_.groups * static_cast<int64_t>(sizeof(RowStatistics)));
  }
  GroupNormShape ShapeOf(const Shape& x) const noexcept {
    return {x[0], x.Count(1, -1), given_.groups, x[-1] / given_.groups,
            static_cast<float>(given_.epsilon)};
  }

  template <typename T>
  Status BackwardOf(const OpCall& call, cudaStream_t stream) const noexcept {
    const GroupNormShape shape = ShapeOf(call.inputs[kX].shape);
    const auto* const x = As<const T>(call.inputs[kX]);
    const auto* const dy = As<const T>(call.output_grads[0]);
    const auto* const statistics = static_cast<const RowStatistics*>(call.saved);
    auto* const means = static_cast<RowStatistics*>(call.workspace);
    auto* const sums = reinterpret_cast<float*>(static_cast<char*>(call.workspace) +
                                                StatisticsBytes(shape.samples));
    ENGINE_RETURN_IF_ERROR(
        Launched(LaunchGroupNormSums(shape, x, dy, statistics, sums, stream), "sums"));
    const int64_t channels = shape.channels();
    for (const int32_t input : {kWeight, kBias}) {
      const auto i = static_cast<size_t>(input);
      if (!WantsGradient(call, i)) continue;
      ENGINE_RETURN_IF_ERROR(Launched(
          LaunchAddParts(sums + (input - kWeight) * channels, shape.samples, 2 * channels, channels,
                         call.input_grads[i].f32(), Accumulates(call, input), stream),
          "gradients of parameters"));
    }
    if (!WantsGradient(call, kX)) return {};
    return Launched(
        LaunchGroupNormGradient(shape, x, dy, call.inputs[kWeight].f32(), statistics, sums, means,
                                As<T>(call.input_grads[kX]), Accumulates(call, kX), stream),
        "backward");
  }
};

}  // namespace

const OpFactory kMakeGroupNorm = kit::NewOp<GroupNormOp>;

}  // namespace engine::cuda_ops
