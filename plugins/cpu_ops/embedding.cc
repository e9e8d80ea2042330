// y[b, t] = weight[token[b, t]] (+ positions[t]).
#include <cstring>
#include <new>

#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

CPU_OPS_KERNEL void AddRow(const float* source, float* target, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) target[i] += source[i];
}

CPU_OPS_KERNEL void SumOfRows(const float* a, const float* b, float* target, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) target[i] = a[i] + b[i];
}

class EmbeddingOp final : public CpuOp {
 public:
  EmbeddingOp(const OpContext& context, const Options& attributes) noexcept
      : CpuOp(context),
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
    AddOutput(signature, Shape{tokens.shape[0], tokens.shape[1], width_}, tokens.batched);
    AddTable("weight", vocabulary_, signature);
    if (positions_ > 0) AddTable("positions", positions_, signature);
    signature->differentiable_inputs = positions_ > 0 ? 0b110 : 0b10;
    signature->accumulates = signature->differentiable_inputs;
    signature->backward_reads_inputs = 1u << kTokens;
    signature->backward_reads_outputs = 0;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckTokens(call.inputs[kTokens]));
    const int32_t* tokens = call.inputs[kTokens].i32();
    const float* table = call.inputs[kWeight].f32();
    const float* positions = positions_ > 0 ? call.inputs[kPositions].f32() : nullptr;
    float* y = call.outputs[0].f32();
    const int64_t length = call.inputs[kTokens].shape[1];
    ForRows(call.inputs[kTokens].count(), width_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float* row = table + tokens[i] * width_;
        if (positions != nullptr) {
          SumOfRows(row, positions + i % length * width_, y + i * width_, width_);
        } else {
          std::memcpy(y + i * width_, row, static_cast<size_t>(width_) * sizeof(float));
        }
      }
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView& tokens = call.inputs[kTokens];
    const float* dy = call.output_grads[0].f32();
    const int64_t length = tokens.shape[1];
    Scatter(call, kWeight, tokens.count(), dy, [&](int64_t i) { return tokens.i32()[i]; });
    Scatter(call, kPositions, tokens.count(), dy, [&](int64_t i) { return i % length; });
    return {};
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
  }

  Status CheckTokens(const TensorView& tokens) const noexcept {
    for (int64_t i = 0; i < tokens.count(); ++i) {
      const int32_t token = tokens.i32()[i];
      if (token >= 0 && token < vocabulary_) continue;
      return Status::Error(
          StatusCode::kBadData,
          "%s: token %d at position %lld of sample %lld is outside the vocabulary [0, %lld)",
          name(), token, static_cast<long long>(i % tokens.shape[1]),
          static_cast<long long>(i / tokens.shape[1]), static_cast<long long>(vocabulary_));
    }
    return {};
  }

  // Adds row i of `dy` to the row target_row(i) of the gradient of `input`. Threads share columns,
  // so each sum has one order whatever their number.
  template <typename TargetRow>
  void Scatter(const OpCall& call, int32_t input, int64_t count, const float* dy,
               const TargetRow& target_row) const noexcept {
    if (!WantsGradient(call, static_cast<size_t>(input))) return;
    const TensorView& gradient = call.input_grads[static_cast<size_t>(input)];
    float* target = gradient.f32();
    if (!Accumulates(call, input)) std::memset(target, 0, gradient.size_bytes());
    ForEachPart(PartCount(count * width_, kElementGrain), width_, kLine,
                [&](int32_t, int64_t begin, int64_t end) {
                  for (int64_t i = 0; i < count; ++i) {
                    AddRow(dy + i * width_, target + target_row(i) * width_, begin, end);
                  }
                });
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

}  // namespace engine::cpu_ops
