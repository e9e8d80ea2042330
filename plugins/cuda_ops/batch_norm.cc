// batch_norm as kit/image_op_shapes.h has it.
//
// Backward, with n = (x - mean) / deviation and means over the batch of all ranks:
//   dx = weight / deviation * (dy - mean(dy) - n * mean(dy * n))
// The gradients of weight and bias are sums over this rank's samples, like those of any parameter.
#include "kernels/batch_norm.h"

#include "cuda_op.h"
#include "kit/image_op_shapes.h"

namespace engine::cuda_ops {
namespace {

constexpr int32_t kX = 0, kWeight = 1, kBias = 2, kRunningMean = 3, kRunningVar = 4;

class BatchNormOp final : public kit::ShapedOp<CudaOp, kit::BatchNormRule> {
 public:
  using ShapedOp::ShapedOp;
  ~BatchNormOp() { device().Free(gathered_); }
  BatchNormOp(const BatchNormOp&) = delete;
  BatchNormOp& operator=(const BatchNormOp&) = delete;

 private:
  Status Plan(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    channels_ = inputs[kX].shape[-1];
    const auto moments_bytes = channels_ * static_cast<int64_t>(sizeof(Moments));
    parts_ = BatchNormParts(inputs[kX].shape.Count(0, -1), channels_);
    signature->saved_bytes = moments_bytes;
    signature->workspace_bytes =
        (parts_ + 1) * moments_bytes + 4 * channels_ * static_cast<int64_t>(sizeof(float));
    return {};
  }

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&]<typename T>(T) { return ForwardOf<T>(call, stream); });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&]<typename T>(T) { return BackwardOf<T>(call, stream); });
  }

  // Where the sums of this call are: of parts of the rows, of this rank, and of all.
  template <typename Sums>
  struct SumsOf {
    Sums *parts, *own, *all;
    int32_t rank = 0, ranks = 1;
  };

  // What ranks tell each other has memory of its own, in which a gather finds it at the same
  // address in every step. Its size depends on the number of ranks, so the first call allocates it.
  template <typename Sums>
  Status Prepare(const OpCall& call, SumsOf<Sums>* sums) noexcept {
    auto* const parts = static_cast<Sums*>(call.workspace);
    *sums = {parts, parts + parts_ * channels_, parts + parts_ * channels_};
    if (!given_.sync || call.replicas == nullptr) return {};
    sums->rank = call.replicas->rank();
    sums->ranks = call.replicas->size();
    if (gathered_ == nullptr) {
      const size_t size_bytes = static_cast<size_t>(sums->ranks * channels_) * sizeof(Moments);
      ENGINE_RETURN_IF_ERROR(device().Allocate(size_bytes, &gathered_).WithContext("%s", name()));
    }
    sums->all = static_cast<Sums*>(gathered_);
    sums->own = sums->all + sums->rank * channels_;
    return {};
  }

  // A double travels as two floats: a gather moves bits and adds nothing.
  template <typename Sums>
  Status Gather(const OpCall& call, const SumsOf<Sums>& sums) const noexcept {
    if (sums.ranks == 1) return {};
    const auto floats = channels_ * static_cast<int64_t>(sizeof(Sums) / sizeof(float));
    return call.replicas->Gather(reinterpret_cast<const float*>(sums.own), floats,
                                 reinterpret_cast<float*>(sums.all), call.stream);
  }

  float* Coefficients(const OpCall& call) const noexcept {
    return reinterpret_cast<float*>(static_cast<Moments*>(call.workspace) +
                                    (parts_ + 1) * channels_);
  }

  BatchNormParameters Parameters(const OpCall& call) const noexcept {
    return {
        call.inputs[kWeight].f32(),     call.inputs[kBias].f32(), call.inputs[kRunningMean].f32(),
        call.inputs[kRunningVar].f32(), given_.momentum,          given_.epsilon};
  }

  template <typename T>
  Status ForwardOf(const OpCall& call, cudaStream_t stream) noexcept {
    const auto* const x = As<const T>(call.inputs[kX]);
    float* const coefficients = Coefficients(call);
    SumsOf<Moments> moments = {};
    if (call.training != 0) {
      ENGINE_RETURN_IF_ERROR(Prepare(call, &moments));
      ENGINE_RETURN_IF_ERROR(Launched(
          LaunchMoments(x, Rows(call), channels_, moments.parts, moments.own, stream), "moments"));
      ENGINE_RETURN_IF_ERROR(Gather(call, moments));
    }
    ENGINE_RETURN_IF_ERROR(
        Launched(LaunchUseMoments(moments.all, moments.ranks, channels_, Parameters(call),
                                  static_cast<Moments*>(call.saved), coefficients, stream),
                 "statistics"));
    return Launched(LaunchNormalize(x, static_cast<const T*>(nullptr), As<T>(call.outputs[0]),
                                    Rows(call), channels_, coefficients, false, stream),
                    "normalization");
  }

  template <typename T>
  Status BackwardOf(const OpCall& call, cudaStream_t stream) noexcept {
    const auto* const batch = static_cast<const Moments*>(call.saved);
    const auto* const x = As<const T>(call.inputs[kX]);
    const auto* const dy = As<const T>(call.output_grads[0]);
    float* const coefficients = Coefficients(call);
    SumsOf<GradientSums> sums;
    ENGINE_RETURN_IF_ERROR(Prepare(call, &sums));
    ENGINE_RETURN_IF_ERROR(Launched(
        LaunchGradientSums(x, dy, Rows(call), channels_, batch, sums.parts, sums.own, stream),
        "sums of gradients"));
    ENGINE_RETURN_IF_ERROR(Gather(call, sums));
    const auto gradient = [&](int32_t input) -> ParameterGradient {
      const auto i = static_cast<size_t>(input);
      if (!WantsGradient(call, i)) return {nullptr, false};
      return {call.input_grads[i].f32(), Accumulates(call, input)};
    };
    ENGINE_RETURN_IF_ERROR(Launched(
        LaunchUseGradientSums(sums.all, sums.ranks, sums.rank, channels_, Parameters(call), batch,
                              gradient(kWeight), gradient(kBias), coefficients, stream),
        "gradients of parameters"));
    if (!WantsGradient(call, kX)) return {};
    return Launched(LaunchNormalize(x, dy, As<T>(call.input_grads[kX]), Rows(call), channels_,
                                    coefficients, Accumulates(call, kX), stream),
                    "gradient of normalization");
  }

  static int64_t Rows(const OpCall& call) noexcept { return call.inputs[kX].shape.Count(0, -1); }

  int64_t channels_ = 0;
  int64_t parts_ = 0;         // of a full batch
  void* gathered_ = nullptr;  // of all ranks
};

}  // namespace

const OpFactory kMakeBatchNorm = kit::NewOp<BatchNormOp>;

}  // namespace engine::cuda_ops
