// conv2d: y = x * weight + b over channels-last tensors: x (B, H, W, C), weight (K, K, C, O) and y
// (B, H', W', O), H' = (H + 2 padding - K) / stride + 1. The passes are those of cuDNN, which wants
// filters as (O, K, K, C): the transpose of our weight as a matrix (K K C, O).
//
// PyTorch has the weight as (O, C, K, K): weight.permute(2, 3, 1, 0) is ours.
#include <map>
#include <memory>
#include <new>

#include "cuda_op.h"
#include "cudnn_convolution.h"
#include "kernels/channels.h"
#include "kit/image_op_shapes.h"

namespace engine::cuda_ops {
namespace {

// What one convolution may take as scratch.
constexpr int64_t kCudnnScratchLimit = int64_t{512} << 20;

class Conv2dOp final : public CudaOp {
 public:
  Conv2dOp(const OpContext& context, const Options& attributes) noexcept
      : CudaOp(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferConv(Inferring(inputs, signature), given_));
    const Shape &x = inputs[kX].shape, &y = signature->outputs[0].shape;
    SetShape(x, y);
    const CudnnConvolution* plan = nullptr;
    if (x[0] > 0) ENGINE_RETURN_IF_ERROR(PlanFor(x[0], kCudnnScratchLimit, &plan));
    scratch_bytes_ = plan == nullptr ? 0 : plan->workspace_bytes();
    partial_bytes_ = PartialBytes(x[0]);
    signature->workspace_bytes = 2 * filter_bytes() + partial_bytes_ + scratch_bytes_;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (Samples(call) == 0) return {};
    return WithElement(activation(), [&]<typename T>(T) { return ForwardOf<T>(call, stream); });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (Samples(call) == 0) {
      ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kWeight, stream));
      return bias_ ? ZeroGradient(call, kBias, stream) : Status();
    }
    return WithElement(activation(), [&]<typename T>(T) { return BackwardOf<T>(call, stream); });
  }

 private:
  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  // Filters as cuDNN wants them, their gradient, sums of the bias, and cuDNN's scratch.
  struct Workspace {
    void* filters;
    void* dfilters;
    float* partials;
    void* scratch;
  };

  static int64_t Samples(const OpCall& call) noexcept { return call.inputs[kX].shape[0]; }

  void SetShape(const Shape& x, const Shape& y) noexcept {
    shape_ = {.height = x[1],
              .width = x[2],
              .channels = x[3],
              .output_height = y[1],
              .output_width = y[2],
              .output_channels = channels_,
              .kernel = kernel_,
              .stride = given_.window.stride,
              .padding = given_.window.padding,
              .type = precision() == Precision::kBFloat16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT,
              .tensor_cores = precision() != Precision::kFloat32};
  }

  // Made by the first call with so many samples. Ops are called by one thread at a time.
  Status PlanFor(int64_t samples, int64_t scratch_limit, const CudnnConvolution** plan) noexcept {
    try {
      std::unique_ptr<CudnnConvolution>& own = plans_[samples];
      if (own == nullptr) {
        ENGINE_RETURN_IF_ERROR(cudnn().Open().WithContext("%s", name()));
        ConvolutionShape shape = shape_;
        shape.samples = samples;
        ENGINE_RETURN_IF_ERROR(
            CudnnConvolution::Create(&cudnn(), shape, scratch_limit, nullptr, &own)
                .WithContext("%s", name()));
      }
      *plan = own.get();
      return {};
    } catch (const std::bad_alloc&) {
      return Status::Error(StatusCode::kResourceExhausted, "%s: no memory for its plan", name());
    }
  }

  int64_t filter_bytes() const noexcept {
    return AlignedBytes(taps() * channels_ * static_cast<int64_t>(SizeOf(activation())));
  }
  // Rows of the weight as a matrix.
  int64_t taps() const noexcept { return kernel_ * kernel_ * shape_.channels; }
  int64_t Rows(int64_t samples) const noexcept {
    return samples * shape_.output_height * shape_.output_width;
  }
  int64_t Parts(int64_t samples) const noexcept {
    return ColumnParts(Rows(samples), channels_, device().multiprocessors());
  }
  int64_t PartialBytes(int64_t samples) const noexcept {
    const int64_t count = bias_ ? Parts(samples) * channels_ : 0;
    return AlignedBytes(count * static_cast<int64_t>(sizeof(float)));
  }

  Workspace WorkspaceOf(const OpCall& call) const noexcept {
    auto* const memory = static_cast<std::byte*>(call.workspace);
    return {memory, memory + filter_bytes(), reinterpret_cast<float*>(memory + 2 * filter_bytes()),
            memory + 2 * filter_bytes() + partial_bytes_};
  }

  template <typename T>
  Status WriteFilters(const OpCall& call, void* filters, cudaStream_t stream) const noexcept {
    return Launched(LaunchTranspose(As<const T>(call.inputs[kWeight]), static_cast<T*>(filters), 1,
                                    taps(), channels_, false, stream),
                    "transposition of the weight");
  }

  template <typename T>
  Status ForwardOf(const OpCall& call, cudaStream_t stream) noexcept {
    const CudnnConvolution* plan = nullptr;
    ENGINE_RETURN_IF_ERROR(PlanFor(Samples(call), scratch_bytes_, &plan));
    const Workspace workspace = WorkspaceOf(call);
    ENGINE_RETURN_IF_ERROR(WriteFilters<T>(call, workspace.filters, stream));
    void* const y = call.outputs[0].data;
    ENGINE_RETURN_IF_ERROR(plan->Run(ConvolutionPass::kForward, call.inputs[kX].data,
                                     workspace.filters, y, workspace.scratch, stream)
                               .WithContext("%s", name()));
    if (!bias_) return {};
    return Launched(LaunchAddBias(static_cast<T*>(y), As<const T>(call.inputs[kBias]),
                                  Rows(Samples(call)), channels_, stream),
                    "bias");
  }

  template <typename T>
  Status BackwardOf(const OpCall& call, cudaStream_t stream) noexcept {
    const CudnnConvolution* plan = nullptr;
    ENGINE_RETURN_IF_ERROR(PlanFor(Samples(call), scratch_bytes_, &plan));
    const Workspace workspace = WorkspaceOf(call);
    const void* const dy = call.output_grads[0].data;
    if (bias_ && WantsGradient(call, kBias)) {
      ENGINE_RETURN_IF_ERROR(BiasGradient<T>(call, workspace.partials, stream));
    }
    if (WantsGradient(call, kWeight)) {
      ENGINE_RETURN_IF_ERROR(plan->Run(ConvolutionPass::kFilters, call.inputs[kX].data, dy,
                                       workspace.dfilters, workspace.scratch, stream)
                                 .WithContext("%s", name()));
      ENGINE_RETURN_IF_ERROR(Launched(LaunchTranspose(static_cast<const T*>(workspace.dfilters),
                                                      call.input_grads[kWeight].f32(), 1, channels_,
                                                      taps(), Accumulates(call, kWeight), stream),
                                      "transposition of the gradient of the weight"));
    }
    if (!WantsGradient(call, kX)) return {};
    ENGINE_RETURN_IF_ERROR(WriteFilters<T>(call, workspace.filters, stream));
    const auto pass = Accumulates(call, kX) ? ConvolutionPass::kAdd : ConvolutionPass::kBackward;
    return plan
        ->Run(pass, dy, workspace.filters, call.input_grads[kX].data, workspace.scratch, stream)
        .WithContext("%s", name());
  }

  template <typename T>
  Status BiasGradient(const OpCall& call, float* partials, cudaStream_t stream) const noexcept {
    const int64_t samples = Samples(call);
    return Launched(LaunchColumnSums(As<const T>(call.output_grads[0]), Rows(samples), channels_,
                                     partials, Parts(samples), call.input_grads[kBias].f32(),
                                     Accumulates(call, kBias), stream),
                    "gradient of the bias");
  }

  const kit::ConvAttributes given_;
  const int64_t channels_ = given_.channels, kernel_ = given_.window.kernel;
  const bool bias_ = given_.bias;
  ConvolutionShape shape_;     // but for the samples
  int64_t scratch_bytes_ = 0;  // of cuDNN, for a full batch
  int64_t partial_bytes_ = 0;
  std::map<int64_t, std::unique_ptr<CudnnConvolution>> plans_;  // by samples
};

}  // namespace

const OpFactory kMakeConv2d = kit::NewOp<Conv2dOp>;

}  // namespace engine::cuda_ops
