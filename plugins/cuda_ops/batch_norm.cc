// y = (x - mean) / sqrt(variance + epsilon) * weight + bias, with mean and variance of each
// channel, the last dimension, over everything before it (Ioffe and Szegedy, arXiv:1502.03167).
//
// While training, mean and variance are those of the batch, and
//   running_mean = (1 - momentum) running_mean + momentum mean
//   running_var  = (1 - momentum) running_var  + momentum variance n / (n - 1)
// as in PyTorch; in evaluation they are the running ones. A batch of one value per channel, which
// PyTorch refuses, has variance 0: its y is the bias, and running_var stays as it was. A batch of
// none changes nothing.
//
// With `sync`, the batch is that of all ranks: one gather in Forward, one in Backward. A rank
// without samples takes part.
//
// Backward, with n = (x - mean) / deviation and means over the batch of all ranks:
//   dx = weight / deviation * (dy - mean(dy) - n * mean(dy * n))
// The gradients of weight and bias are sums over this rank's samples, like those of any parameter.
#include "kernels/batch_norm.h"

#include <new>

#include "engine/image_op_shapes.h"
#include "ops.h"

namespace engine::cuda_ops {
namespace {

constexpr int32_t kX = 0, kWeight = 1, kBias = 2, kRunningMean = 3, kRunningVar = 4;

// Memory of the device for what all ranks tell each other. It depends on their number, so it is
// allocated by the first call; a gather finds it at the same address in every step.
class GatherMemory {
 public:
  explicit GatherMemory(Device& device) noexcept : device_(device) {}
  ~GatherMemory() {
    if (memory_ != nullptr) device_.Free(memory_);
  }
  GatherMemory(const GatherMemory&) = delete;
  GatherMemory& operator=(const GatherMemory&) = delete;

  // `floats` of each rank. kResourceExhausted.
  Status Reserve(const Replicas& replicas, int64_t floats) noexcept {
    if (memory_ != nullptr) return {};
    return device_.Allocate(static_cast<size_t>(replicas.size() * floats) * sizeof(float),
                            &memory_);
  }
  float* all() const noexcept { return static_cast<float*>(memory_); }

 private:
  Device& device_;
  void* memory_ = nullptr;
};

class BatchNormOp final : public CudaOp {
 public:
  BatchNormOp(const OpContext& context, const Options& attributes) noexcept
      : CudaOp(context),
        momentum_(attributes.Float("momentum")),
        epsilon_(attributes.Float("epsilon")),
        sync_(attributes.Bool("sync")),
        gathered_moments_(device()),
        gathered_sums_(device()) {}

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferBatchNorm(Inferring(inputs, signature), sync_));
    channels_ = inputs[kX].shape[-1];
    signature->saved_bytes = BatchNormSaved::Bytes(channels_);
    parts_ = BatchNormParts(inputs[kX].shape.Count(0, -1), channels_);
    signature->workspace_bytes =
        BatchNormPartBytes(parts_, channels_) +
        (3 * channels_ + MomentFloats(channels_)) * static_cast<int64_t>(sizeof(float));
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(),
                       [&](auto element) { return ForwardOf<decltype(element)>(call, stream); });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(),
                       [&](auto element) { return BackwardOf<decltype(element)>(call, stream); });
  }

 private:
  // The workspace: sums of parts, three numbers per channel, and what this rank tells.
  struct Workspace {
    double* parts;
    float *coefficients, *own;
  };

  Workspace WorkspaceOf(const OpCall& call) const noexcept {
    auto* const parts = static_cast<double*>(call.workspace);
    auto* const coefficients = reinterpret_cast<float*>(parts + parts_ * 2 * channels_);
    return {parts, coefficients, coefficients + 3 * channels_};
  }

  // What ranks tell each other: where this one writes, where all are read, and how many.
  struct Exchange {
    float *own, *all;
    int32_t ranks;
  };

  // `floats` of each rank.
  Status Prepare(const OpCall& call, float* own, int64_t floats, GatherMemory* memory,
                 Exchange* exchange) const noexcept {
    *exchange = {own, own, 1};
    if (!sync_ || call.replicas == nullptr) return {};
    ENGINE_RETURN_IF_ERROR(memory->Reserve(*call.replicas, floats).WithContext("%s", name()));
    *exchange = {memory->all() + call.replicas->rank() * floats, memory->all(),
                 call.replicas->size()};
    return {};
  }

  static Status Gather(const OpCall& call, const Exchange& exchange, int64_t floats) noexcept {
    if (exchange.ranks == 1) return {};
    return call.replicas->Gather(exchange.own, floats, exchange.all, call.stream);
  }

  template <typename T>
  Status ForwardOf(const OpCall& call, cudaStream_t stream) noexcept {
    const Workspace workspace = WorkspaceOf(call);
    const auto* const x = static_cast<const T*>(call.inputs[kX].data);
    const BatchNormParameters parameters = {call.inputs[kWeight].f32(),
                                            call.inputs[kBias].f32(),
                                            call.inputs[kRunningMean].f32(),
                                            call.inputs[kRunningVar].f32(),
                                            momentum_,
                                            epsilon_};
    if (call.training != 0) {
      Exchange exchange;
      const int64_t floats = MomentFloats(channels_);
      ENGINE_RETURN_IF_ERROR(Prepare(call, workspace.own, floats, &gathered_moments_, &exchange));
      ENGINE_RETURN_IF_ERROR(
          Launched(LaunchMoments(x, Rows(call), channels_, workspace.parts, exchange.own, stream),
                   "moments"));
      ENGINE_RETURN_IF_ERROR(Gather(call, exchange, floats));
      ENGINE_RETURN_IF_ERROR(Launched(
          LaunchUseBatch(exchange.all, exchange.ranks, channels_, parameters,
                         BatchNormSaved(call.saved, channels_), workspace.coefficients, stream),
          "statistics"));
    } else {
      ENGINE_RETURN_IF_ERROR(
          Launched(LaunchUseRunning(channels_, parameters, workspace.coefficients, stream),
                   "running statistics"));
    }
    return Launched(LaunchNormalize(x, static_cast<T*>(call.outputs[0].data), Rows(call), channels_,
                                    workspace.coefficients, stream),
                    "normalization");
  }

  template <typename T>
  Status BackwardOf(const OpCall& call, cudaStream_t stream) noexcept {
    const Workspace workspace = WorkspaceOf(call);
    const BatchNormSaved saved(call.saved, channels_);
    const auto* const x = static_cast<const T*>(call.inputs[kX].data);
    const auto* const dy = static_cast<const T*>(call.output_grads[0].data);
    Exchange exchange;
    const int64_t floats = GradientFloats(channels_);
    ENGINE_RETURN_IF_ERROR(Prepare(call, workspace.own, floats, &gathered_sums_, &exchange));
    ENGINE_RETURN_IF_ERROR(Launched(LaunchGradientSums(x, dy, Rows(call), channels_, saved,
                                                       workspace.parts, exchange.own, stream),
                                    "sums of gradients"));
    ENGINE_RETURN_IF_ERROR(WriteGradient(call, kWeight, exchange.own + channels_, stream));
    ENGINE_RETURN_IF_ERROR(WriteGradient(call, kBias, exchange.own, stream));
    ENGINE_RETURN_IF_ERROR(Gather(call, exchange, floats));
    if (!WantsGradient(call, kX)) return {};
    ENGINE_RETURN_IF_ERROR(
        Launched(LaunchSlopes(exchange.all, exchange.ranks, channels_, call.inputs[kWeight].f32(),
                              saved, workspace.coefficients, stream),
                 "slopes"));
    return Launched(LaunchNormalizeGradient(x, dy, static_cast<T*>(call.input_grads[kX].data),
                                            Rows(call), channels_, saved.high,
                                            workspace.coefficients, Accumulates(call, kX), stream),
                    "gradient of normalization");
  }

  static int64_t Rows(const OpCall& call) noexcept { return call.inputs[kX].shape.Count(0, -1); }

  Status WriteGradient(const OpCall& call, int32_t input, const float* sums,
                       cudaStream_t stream) const noexcept {
    if (!WantsGradient(call, static_cast<size_t>(input))) return {};
    return Launched(
        LaunchParameterGradient(sums, call.input_grads[static_cast<size_t>(input)].f32(), channels_,
                                Accumulates(call, input), stream),
        "gradient of a parameter");
  }

  const double momentum_, epsilon_;
  const bool sync_;
  int64_t channels_ = 0;
  int64_t parts_ = 0;  // of a full batch
  GatherMemory gathered_moments_, gathered_sums_;
};

}  // namespace

Op* MakeBatchNorm(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) BatchNormOp(context, attributes);
}

}  // namespace engine::cuda_ops
