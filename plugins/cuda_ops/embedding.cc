// y[..., t] = weight[token[..., t]] (+ positions[t]).
#include "kernels/embedding.h"

#include <string_view>

#include "cuda_op.h"
#include "engine/ext/row_table.h"

namespace engine::cuda_ops {
namespace {

class EmbeddingOp final : public kit::ShapedOp<CudaOp, kit::EmbeddingRule>, public RowTableBase {
 public:
  using ShapedOp::ShapedOp;

  void* Query(std::string_view id) noexcept override { return Offer<RowTable>(id, this); }
  int32_t table_input() const noexcept override { return kWeight; }

 private:
  Status Plan(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const EmbeddingScratch scratch(nullptr, inputs[kTokens].shape.Count(), given_.width,
                                   given_.vocabulary);
    ENGINE_RETURN_IF_ERROR(Launched(scratch.error, "asking for the scratch of a sort"));
    signature->workspace_bytes = scratch.size_bytes;
    return {};
  }

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& tokens = call.inputs[kTokens];
    return WithElement(activation(), [&]<typename T>(T) {
      const EmbeddingForward<T> forward = {
          .tokens = tokens.i32(),
          .table = As<const T>(call.inputs[kWeight]),
          .positions = given_.positions > 0 ? As<const T>(call.inputs[kPositions]) : nullptr,
          .y = As<T>(call.outputs[0]),
          .count = tokens.count(),
          .length = tokens.shape[-1],
          .width = given_.width,
          .vocabulary = given_.vocabulary,
          .fault = device().fault_word()};
      return Launched(LaunchEmbedding(forward, stream), "forward");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& tokens = call.inputs[kTokens];
    // Kernels only add: of the table they touch the rows of this batch.
    ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kWeight, stream));
    ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kPositions, stream));
    return WithElement(activation(), [&]<typename T>(T) -> Status {
      const auto* const dy = As<const T>(call.output_grads[0]);
      if (WantsGradient(call, kWeight)) {
        const EmbeddingScratch scratch(call.workspace, tokens.count(), given_.width,
                                       given_.vocabulary);
        ENGINE_RETURN_IF_ERROR(
            Launched(LaunchEmbeddingGradient(tokens.i32(), dy, tokens.count(), given_.width,
                                             given_.vocabulary, scratch,
                                             call.input_grads[kWeight].f32(), stream),
                     "backward of the table"));
      }
      if (!WantsGradient(call, kPositions)) return {};
      return Launched(LaunchPositionGradient(dy, tokens.count(), tokens.shape[-1], given_.width,
                                             call.input_grads[kPositions].f32(), stream),
                      "backward of the positions");
    });
  }

  static constexpr int32_t kTokens = 0, kWeight = 1, kPositions = 2;
};

}  // namespace

const OpFactory kMakeEmbedding = kit::NewOp<EmbeddingOp>;

}  // namespace engine::cuda_ops
