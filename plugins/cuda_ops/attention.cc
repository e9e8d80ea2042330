// Self-attention over qkv (B, T, 3C): queries, keys and values side by side, each cut into heads of
// C / heads columns (the layout of GPT-2). Saved for backward: log-sum-exp of each row of scores,
// (B, heads, T).
#include <limits>
#include <new>

#include "kernels/attention_backward.h"
#include "kernels/attention_forward.h"
#include "kernels/attention_plain.h"
#include "ops.h"

namespace engine::cuda_ops {
namespace {

class AttentionOp final : public CudaOp {
 public:
  AttentionOp(const OpContext& context, const Options& attributes) noexcept
      : CudaOp(context), heads_(attributes.Int("heads")), causal_(attributes.Bool("causal")) {}

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferAttention(Inferring(inputs, signature), heads_));
    const Shape& qkv = inputs[0].shape;
    const int64_t width = qkv[2] / 3, length = qkv[1];
    ENGINE_RETURN_IF_ERROR(CheckSize(width / heads_, length));
    const int64_t row_bytes = qkv[0] * heads_ * length * static_cast<int64_t>(sizeof(float));
    signature->saved_bytes = row_bytes;
    signature->workspace_bytes = row_bytes;
    signature->backward_reads_outputs = 1;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& qkv = call.inputs[0];
    const AttentionShape shape = ShapeOf(qkv);
    auto* const log_sums = static_cast<float*>(call.saved);
    void* const y = call.outputs[0].data;
    if (IsFlash(shape, {qkv.data, y})) {
      return Launched(LaunchFlashForward(shape, static_cast<const __nv_bfloat16*>(qkv.data),
                                         static_cast<__nv_bfloat16*>(y), log_sums, stream),
                      "flash attention");
    }
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      return Launched(LaunchPlainAttentionForward(shape, static_cast<const T*>(qkv.data),
                                                  static_cast<T*>(y), log_sums, stream),
                      "attention");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const AttentionShape shape = ShapeOf(call.inputs[0]);
    if (IsFlash(shape, {call.inputs[0].data, call.outputs[0].data, call.output_grads[0].data,
                        call.input_grads[0].data})) {
      return Launched(LaunchFlashBackward(shape, BackwardCall<__nv_bfloat16>(call), stream),
                      "gradient of flash attention");
    }
    return WithElement(activation(), [&](auto element) {
      return Launched(
          LaunchPlainAttentionBackward(shape, BackwardCall<decltype(element)>(call), stream),
          "gradient of attention");
    });
  }

 private:
  Status CheckSize(int64_t head_size, int64_t length) const noexcept {
    if (head_size > kMaxPlainHeadSize) {
      return Status::Error(StatusCode::kConfig,
                           "%s: a head of %lld columns is too large, the largest has %lld; choose "
                           "more heads",
                           name(), static_cast<long long>(head_size),
                           static_cast<long long>(kMaxPlainHeadSize));
    }
    constexpr int64_t kMaxLength = 1 << 24;
    if (length > kMaxLength) {
      return Status::Error(
          StatusCode::kConfig, "%s: samples of %lld positions are too long, the longest have %lld",
          name(), static_cast<long long>(length), static_cast<long long>(kMaxLength));
    }
    return {};
  }

  AttentionShape ShapeOf(const TensorView& qkv) const noexcept {
    return {static_cast<int32_t>(qkv.shape[0]), static_cast<int32_t>(qkv.shape[1]),
            static_cast<int32_t>(heads_), static_cast<int32_t>(qkv.shape[2] / 3 / heads_), causal_};
  }

  bool IsFlash(const AttentionShape& shape,
               std::initializer_list<const void*> tensors) const noexcept {
    if (activation() != DType::kBFloat16 || !IsFlashHeadSize(shape.head_size)) return false;
    for (const void* tensor : tensors) {
      if (reinterpret_cast<uintptr_t>(tensor) % 16 != 0) return false;
    }
    return true;
  }

  template <typename T>
  static AttentionBackwardCall<T> BackwardCall(const OpCall& call) noexcept {
    return {.qkv = static_cast<const T*>(call.inputs[0].data),
            .y = static_cast<const T*>(call.outputs[0].data),
            .log_sums = static_cast<const float*>(call.saved),
            .dy = static_cast<const T*>(call.output_grads[0].data),
            .dqkv = static_cast<T*>(call.input_grads[0].data),
            .delta = static_cast<float*>(call.workspace),
            .sum = Accumulates(call, 0)};
  }

  const int64_t heads_;
  const bool causal_;
};

}  // namespace

Op* MakeAttention(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) AttentionOp(context, attributes);
}

}  // namespace engine::cuda_ops
