// y[b, t] = weight[token[b, t]] (+ positions[t]).
#include "kernels/embedding.h"

#include <new>

#include "ops.h"

namespace engine::cuda_ops {
namespace {

class EmbeddingOp final : public CudaOp {
 public:
  EmbeddingOp(const OpContext& context, const Options& attributes) noexcept
      : CudaOp(context),
        vocabulary_(attributes.Int("vocabulary")),
        width_(attributes.Int("width")),
        positions_(attributes.Int("positions")),
        init_scale_(static_cast<float>(attributes.Float("init_scale"))) {}

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckInputCount(inputs, 1));
    const TensorSpec& tokens = inputs[kTokens];
    if (tokens.dtype != DType::kInt32 || tokens.shape.ndim != 2) {
      return InputError(inputs, kTokens, "int32 (B, T)");
    }
    if (positions_ > 0 && tokens.shape[1] > positions_) {
      return Status::Error(StatusCode::kConfig,
                           "%s: samples of %lld tokens are longer than the %lld positions; raise "
                           "'positions' or shorten the samples",
                           name(), static_cast<long long>(tokens.shape[1]),
                           static_cast<long long>(positions_));
    }
    AddOutput(signature, Shape{tokens.shape[0], tokens.shape[1], width_}, tokens.batched,
              activation());
    AddTable("weight", vocabulary_, signature);
    if (positions_ > 0) AddTable("positions", positions_, signature);
    const EmbeddingScratch scratch(nullptr, tokens.shape.Count(), width_, vocabulary_);
    ENGINE_RETURN_IF_ERROR(Launched(scratch.error, "asking for the scratch of a sort"));
    signature->workspace_bytes = scratch.size_bytes;
    signature->differentiable_inputs = positions_ > 0 ? 0b110 : 0b10;
    signature->accumulates = signature->differentiable_inputs;
    signature->backward_reads_inputs = 1u << kTokens;
    signature->backward_reads_outputs = 0;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& tokens = call.inputs[kTokens];
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      const EmbeddingForward<T> forward = {
          .tokens = tokens.i32(),
          .table = static_cast<const T*>(call.inputs[kWeight].data),
          .positions =
              positions_ > 0 ? static_cast<const T*>(call.inputs[kPositions].data) : nullptr,
          .y = static_cast<T*>(call.outputs[0].data),
          .count = tokens.count(),
          .length = tokens.shape[1],
          .width = width_,
          .vocabulary = vocabulary_,
          .fault = device().fault_word()};
      return Launched(LaunchEmbedding(forward, stream), "forward");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& tokens = call.inputs[kTokens];
    ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kWeight, stream));
    ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kPositions, stream));
    return WithElement(activation(), [&](auto element) -> Status {
      using T = decltype(element);
      const auto* const dy = static_cast<const T*>(call.output_grads[0].data);
      if (WantsGradient(call, kWeight)) {
        const EmbeddingScratch scratch(call.workspace, tokens.count(), width_, vocabulary_);
        ENGINE_RETURN_IF_ERROR(
            Launched(LaunchEmbeddingGradient(tokens.i32(), dy, tokens.count(), width_, vocabulary_,
                                             scratch, call.input_grads[kWeight].f32(), stream),
                     "backward of the table"));
      }
      if (!WantsGradient(call, kPositions)) return {};
      return Launched(LaunchPositionGradient(dy, tokens.count(), tokens.shape[1], width_,
                                             call.input_grads[kPositions].f32(), stream),
                      "backward of the positions");
    });
  }

 private:
  static constexpr int32_t kTokens = 0, kWeight = 1, kPositions = 2;

  // `literal` has the type that FixedString takes.
  template <size_t kLength>
  void AddTable(const char (&literal)[kLength], int64_t rows,
                OpSignature* signature) const noexcept {
    ParameterSpec& table = AddParameter(signature, Shape{rows, width_});
    table.name = literal;
    table.initializer = Initializer::kNormal;
    table.scale = init_scale_;
    table.dtype = activation();
  }

  const int64_t vocabulary_;
  const int64_t width_;
  const int64_t positions_;
  const float init_scale_;
};

}  // namespace

Op* MakeEmbedding(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) EmbeddingOp(context, attributes);
}

}  // namespace engine::cuda_ops
