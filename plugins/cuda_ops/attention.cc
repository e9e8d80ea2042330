// Self-attention over qkv (B, T, 3C): queries, keys and values side by side, each cut into heads of
// C / heads columns (the layout of GPT-2). Saved for backward: log-sum-exp of each row of scores,
// (B, heads, T).
#include "kernels/attention.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <new>

#include "cuda_op.h"
#include "cudnn_attention.h"

namespace engine::cuda_ops {
namespace {

class AttentionOp final : public CudaOp {
 public:
  AttentionOp(const OpContext& context, const Options& attributes) noexcept
      : AttentionOp(context, attributes.Int("heads"), attributes.Bool("causal")) {}
  AttentionOp(const OpContext& context, int64_t heads, bool causal) noexcept
      : CudaOp(context), heads_(heads), causal_(causal) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferAttention(Inferring(inputs, signature), heads_));
    const Shape& qkv = inputs[0].shape;
    const int64_t width = qkv[2] / 3, length = qkv[1];
    ENGINE_RETURN_IF_ERROR(CheckSize(width / heads_, length));
    const int64_t row_bytes = qkv[0] * heads_ * length * static_cast<int64_t>(sizeof(float));
    const AttentionPasses* cudnn = nullptr;
    ENGINE_RETURN_IF_ERROR(FindPasses(ShapeOf(qkv), &cudnn));
    for (const auto* pass : {&cudnn->forward, &cudnn->backward}) {
      if (*pass != nullptr) scratch_bytes_ = std::max(scratch_bytes_, (*pass)->workspace_bytes());
    }
    signature->saved_bytes = row_bytes;
    signature->workspace_bytes = AlignedBytes(row_bytes) + scratch_bytes_;
    signature->backward_reads_outputs = 1;
    return {};
  }

 private:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& qkv = call.inputs[0];
    const AttentionShape shape = ShapeOf(qkv.shape);
    auto* const log_sums = static_cast<float*>(call.saved);
    void* const y = call.outputs[0].data;
    const AttentionPasses* cudnn = nullptr;
    ENGINE_RETURN_IF_ERROR(FindPasses(shape, &cudnn));
    if (CanRun(cudnn->forward, {qkv.data, y})) {
      // Writes log_sums also where nothing is saved, in evaluation.
      return cudnn->forward->Run(
          {.qkv = As<const __nv_bfloat16>(qkv),
           .y = static_cast<__nv_bfloat16*>(y),
           .log_sums = static_cast<float*>(call.saved != nullptr ? call.saved : call.workspace)},
          Scratch(call), stream);
    }
    if (IsFlash(shape, {qkv.data, y})) {
      return Launched(LaunchFlashForward(shape, As<const __nv_bfloat16>(qkv),
                                         static_cast<__nv_bfloat16*>(y), log_sums, stream),
                      "flash attention");
    }
    return WithElement(activation(), [&]<typename T>(T) {
      return Launched(LaunchPlainAttentionForward(shape, As<const T>(qkv), static_cast<T*>(y),
                                                  log_sums, stream),
                      "attention");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const AttentionShape shape = ShapeOf(call.inputs[0].shape);
    const Addresses tensors = {call.inputs[0].data, call.outputs[0].data, call.output_grads[0].data,
                               call.input_grads[0].data};
    const AttentionPasses* cudnn = nullptr;
    ENGINE_RETURN_IF_ERROR(FindPasses(shape, &cudnn));
    if (!Accumulates(call, 0) && CanRun(cudnn->backward, tensors)) {
      return cudnn->backward->Run(BackwardCall<__nv_bfloat16>(call), Scratch(call), stream);
    }
    if (IsFlash(shape, tensors)) {
      return Launched(LaunchFlashBackward(shape, BackwardCall<__nv_bfloat16>(call), stream),
                      "gradient of flash attention");
    }
    return WithElement(activation(), [&]<typename T>(T) {
      return Launched(LaunchPlainAttentionBackward(shape, BackwardCall<T>(call), stream),
                      "gradient of attention");
    });
  }

  using Addresses = std::initializer_list<const void*>;

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

  AttentionShape ShapeOf(const Shape& qkv) const noexcept {
    return {static_cast<int32_t>(qkv[0]), static_cast<int32_t>(qkv[1]),
            static_cast<int32_t>(heads_), static_cast<int32_t>(qkv[2] / 3 / heads_), causal_};
  }

  // What cuDNN computes of a call with so many samples.
  Status FindPasses(const AttentionShape& shape, const AttentionPasses** passes) const noexcept {
    *passes = &none_;
    if (attention_plans() == nullptr || shape.batch == 0) return {};
    return attention_plans()
        ->Find(shape, activation() == DType::kBFloat16, passes)
        .WithContext("%s", name());
  }

  // Not where a batch that is not full needs more scratch than a full one.
  bool CanRun(const std::unique_ptr<CudnnAttention>& pass, Addresses tensors) const noexcept {
    return pass != nullptr && pass->workspace_bytes() <= scratch_bytes_ && AreAligned(tensors);
  }

  bool IsFlash(const AttentionShape& shape, Addresses tensors) const noexcept {
    return activation() == DType::kBFloat16 && IsFlashHeadSize(shape.head_size) &&
           AreAligned(tensors);
  }

  static bool AreAligned(Addresses tensors) noexcept {
    return std::all_of(tensors.begin(), tensors.end(), [](const void* tensor) {
      return reinterpret_cast<uintptr_t>(tensor) % 16 == 0;
    });
  }

  // The workspace: a number for each row of scores, then scratch of cuDNN.
  void* Scratch(const OpCall& call) const noexcept {
    const Shape& qkv = call.inputs[0].shape;
    return static_cast<std::byte*>(call.workspace) +
           AlignedBytes(qkv[0] * heads_ * qkv[1] * static_cast<int64_t>(sizeof(float)));
  }

  template <typename T>
  static AttentionBackwardCall<T> BackwardCall(const OpCall& call) noexcept {
    return {.qkv = As<const T>(call.inputs[0]),
            .y = As<const T>(call.outputs[0]),
            .log_sums = static_cast<const float*>(call.saved),
            .dy = As<const T>(call.output_grads[0]),
            .dqkv = As<T>(call.input_grads[0]),
            .delta = static_cast<float*>(call.workspace),
            .sum = Accumulates(call, 0)};
  }

  const int64_t heads_;
  const bool causal_;
  const AttentionPasses none_;
  int64_t scratch_bytes_ = 0;
};

}  // namespace

const OpFactory kMakeAttention = kit::NewOp<AttentionOp>;

Op* NewAttention(const OpContext& context, int64_t heads, bool causal) noexcept {
  return new (std::nothrow) AttentionOp(context, heads, causal);
}

}  // namespace engine::cuda_ops
