// conv2d and conv_transpose2d over channels-last tensors (kit/image_op_shapes.h). The passes are
// those of cuDNN, for which the plane that windows move over is the wide one, the one of their
// positions the narrow one: x and y of conv2d, y and x of conv_transpose2d, which is the gradient of
// a convolution.
//
// cuDNN wants filters as (narrow channels, KH, KW, wide channels / groups). Those of layout hwio,
// (KH, KW, C / groups, O), are the transpose of that as one matrix; those of oihw, as PyTorch has
// them, also of conv_transpose2d, are so filter by filter: matrices (wide channels / groups, KH KW).
//
// Ends of an axis with different padding cuDNN does not have, nor a wide plane whose last positions
// no window comes to because they are too many. There, the wide plane is copied to one with its
// padding, or from it.
#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <type_traits>

#include "cuda_op.h"
#include "cudnn_convolution.h"
#include "kernels/channels.h"
#include "kit/image_op_shapes.h"
#include "strided_tensors.h"

namespace engine::cuda_ops {
namespace {

// What one convolution may take as scratch.
constexpr int64_t kCudnnScratchLimit = int64_t{512} << 20;

template <bool kTransposed>
class ConvOp final : public CudaOp {
 public:
  ConvOp(const OpContext& context, const Options& attributes) noexcept
      : CudaOp(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    if constexpr (kTransposed) {
      ENGINE_RETURN_IF_ERROR(kit::InferConvTranspose(Inferring(inputs, signature), given_));
    } else {
      ENGINE_RETURN_IF_ERROR(kit::InferConv(Inferring(inputs, signature), given_));
    }
    const Shape &x = inputs[kX].shape, &y = signature->outputs[0].shape;
    SetShape(kTransposed ? y : x, kTransposed ? x : y);
    output_positions_ = y[1] * y[2];
    const CudnnConvolution* plan = nullptr;
    if (x[0] > 0) ENGINE_RETURN_IF_ERROR(PlanFor(x[0], kCudnnScratchLimit, &plan));
    scratch_bytes_ = plan == nullptr ? 0 : plan->workspace_bytes();
    partial_bytes_ = PartialBytes(x[0]);
    padded_bytes_ =
        pads_ ? ActivationBytes(x[0] * shape_.height * shape_.width * shape_.channels) : 0;
    signature->workspace_bytes =
        2 * filter_bytes() + partial_bytes_ + padded_bytes_ + scratch_bytes_;
    return {};
  }

 private:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (Samples(call) == 0) return {};
    return WithElement(activation(), [&]<typename T>(T) { return ForwardOf<T>(call, stream); });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (Samples(call) == 0) {
      ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kWeight, stream));
      return given_.bias ? ZeroGradient(call, kBias, stream) : Status();
    }
    return WithElement(activation(), [&]<typename T>(T) { return BackwardOf<T>(call, stream); });
  }

  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;
  using Attributes =
      std::conditional_t<kTransposed, kit::ConvTransposeAttributes, kit::Conv2dAttributes>;
  using Pass = ConvolutionPass;

  // Filters as cuDNN wants them, their gradient, sums of the bias, the padded plane, and cuDNN's
  // scratch.
  struct Workspace {
    void* filters;
    void* dfilters;
    float* partials;
    void* padded;
    void* scratch;
  };

  // `count` matrices of the weight whose transposes are the filters.
  struct Matrices {
    int64_t count, rows, columns;
  };
  Matrices WeightMatrices() const noexcept {
    const int64_t taps = given_.window.taps(), inputs = shape_.channels / shape_.groups;
    bool by_filter = true;
    if constexpr (!kTransposed) by_filter = given_.oihw;
    return by_filter ? Matrices{shape_.output_channels, inputs, taps}
                     : Matrices{1, taps * inputs, shape_.output_channels};
  }

  static int64_t Samples(const OpCall& call) noexcept { return call.inputs[kX].shape[0]; }

  // shape_, but for the samples, has the wide plane with its padding where that is copied.
  void SetShape(const Shape& wide, const Shape& narrow) noexcept {
    const kit::Window &rows = given_.window.rows, &columns = given_.window.columns;
    const auto is_plain = [](const kit::Window& axis, int64_t extent, int64_t positions) {
      return axis.before == axis.after && axis.Positions(extent) == positions;
    };
    const auto seen = [](const kit::Window& axis, int64_t positions) {
      return (positions - 1) * axis.stride + axis.Reach();
    };
    wide_ = wide;
    pads_ = !is_plain(rows, wide[1], narrow[1]) || !is_plain(columns, wide[2], narrow[2]);
    shape_ = {.height = pads_ ? seen(rows, narrow[1]) : wide[1],
              .width = pads_ ? seen(columns, narrow[2]) : wide[2],
              .channels = wide[3],
              .output_height = narrow[1],
              .output_width = narrow[2],
              .output_channels = narrow[3],
              .kernel_height = rows.kernel,
              .kernel_width = columns.kernel,
              .groups = given_.groups,
              .window = {.stride = {rows.stride, columns.stride},
                         .dilation = {rows.dilation, columns.dilation}},
              .type = precision() == Precision::kBFloat16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT,
              .tensor_cores = precision() != Precision::kFloat32,
              .adds_forward = kTransposed};
    if (!pads_) shape_.window.padding = {rows.before, columns.before};
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

  int64_t ActivationBytes(int64_t count) const noexcept {
    return AlignedBytes(count * static_cast<int64_t>(SizeOf(activation())));
  }
  int64_t filter_bytes() const noexcept {
    const Matrices matrices = WeightMatrices();
    return ActivationBytes(matrices.count * matrices.rows * matrices.columns);
  }
  // Of the output as a matrix.
  int64_t Rows(int64_t samples) const noexcept { return samples * output_positions_; }
  int64_t Parts(int64_t samples) const noexcept {
    return ColumnParts(Rows(samples), given_.channels, device().multiprocessors());
  }
  int64_t PartialBytes(int64_t samples) const noexcept {
    const int64_t count = given_.bias ? Parts(samples) * given_.channels : 0;
    return AlignedBytes(count * static_cast<int64_t>(sizeof(float)));
  }

  Workspace WorkspaceOf(const OpCall& call) const noexcept {
    auto* const filters = static_cast<std::byte*>(call.workspace);
    auto* const partials = filters + 2 * filter_bytes();
    auto* const padded = partials + partial_bytes_;
    return {filters, filters + filter_bytes(), reinterpret_cast<float*>(partials), padded,
            padded + padded_bytes_};
  }

  // Between the wide plane and the one with its padding, as far as both go.
  Status CopyPlane(const void* wide, const void* padded, bool to_padded, bool sum, int64_t samples,
                   cudaStream_t stream) const noexcept {
    const int64_t top = given_.window.rows.before, left = given_.window.columns.before;
    const Shape all = {samples, wide_[1], wide_[2], wide_[3]};
    const Shape padded_all = {samples, shape_.height, shape_.width, shape_.channels};
    Shape both = all;
    both[1] = std::min(wide_[1], shape_.height - top);
    both[2] = std::min(wide_[2], shape_.width - left);
    const TensorView views[] = {{const_cast<void*>(wide), all, activation()},
                                {const_cast<void*>(padded), padded_all, activation()}};
    const TensorView& target = views[to_padded ? 1 : 0];
    if (!sum && both.Count() < target.count()) {
      ENGINE_RETURN_IF_ERROR(
          Launched(cudaMemsetAsync(target.data, 0, target.size_bytes(), stream), "padding"));
    }
    StridedMap map = MapOver(both);
    StridedTensor ends[] = {Dense(views[0]), Dense(views[1])};
    Move((top * shape_.width + left) * shape_.channels, &ends[1]);
    map.in[0] = ends[to_padded ? 0 : 1];
    map.out = ends[to_padded ? 1 : 0];
    map.sum = sum;
    return Launched(LaunchStrided(map, nullptr, stream), "padding");
  }

  // *out: the wide plane, as cuDNN reads it.
  Status ReadWide(const OpCall& call, const void* wide, const void** out,
                  cudaStream_t stream) const noexcept {
    *out = wide;
    if (!pads_) return {};
    *out = WorkspaceOf(call).padded;
    return CopyPlane(wide, *out, true, false, Samples(call), stream);
  }

  // The pass that gives the wide plane, of the narrow one.
  Status WriteWide(const OpCall& call, const CudnnConvolution& plan, const void* narrow, void* wide,
                   bool sum, cudaStream_t stream) const noexcept {
    const Workspace workspace = WorkspaceOf(call);
    const Pass pass = sum && !pads_ ? Pass::kAdd : Pass::kBackward;
    ENGINE_RETURN_IF_ERROR(Run(plan, pass, narrow, workspace.filters,
                               pads_ ? workspace.padded : wide, workspace.scratch, stream));
    if (!pads_) return {};
    return CopyPlane(wide, workspace.padded, false, sum, Samples(call), stream);
  }

  // The pass that gives the narrow plane, of the wide one.
  Status WriteNarrow(const OpCall& call, const CudnnConvolution& plan, const void* wide,
                     void* narrow, bool sum, cudaStream_t stream) const noexcept {
    const Workspace workspace = WorkspaceOf(call);
    const void* read = nullptr;
    ENGINE_RETURN_IF_ERROR(ReadWide(call, wide, &read, stream));
    return Run(plan, sum ? Pass::kAdd : Pass::kForward, read, workspace.filters, narrow,
               workspace.scratch, stream);
  }

  Status Run(const CudnnConvolution& plan, Pass pass, const void* a, const void* b, void* result,
             void* scratch, cudaStream_t stream) const noexcept {
    return plan.Run(pass, a, b, result, scratch, stream).WithContext("%s", name());
  }

  template <typename T>
  Status WriteFilters(const OpCall& call, void* filters, cudaStream_t stream) const noexcept {
    const auto [count, rows, columns] = WeightMatrices();
    return Launched(LaunchTranspose(As<const T>(call.inputs[kWeight]), static_cast<T*>(filters),
                                    count, rows, columns, false, stream),
                    "transposition of the weight");
  }

  template <typename T>
  Status ForwardOf(const OpCall& call, cudaStream_t stream) noexcept {
    const CudnnConvolution* plan = nullptr;
    ENGINE_RETURN_IF_ERROR(PlanFor(Samples(call), scratch_bytes_, &plan));
    ENGINE_RETURN_IF_ERROR(WriteFilters<T>(call, WorkspaceOf(call).filters, stream));
    const void* const x = call.inputs[kX].data;
    void* const y = call.outputs[0].data;
    ENGINE_RETURN_IF_ERROR(kTransposed ? WriteWide(call, *plan, x, y, false, stream)
                                       : WriteNarrow(call, *plan, x, y, false, stream));
    if (!given_.bias) return {};
    return Launched(LaunchAddBias(static_cast<T*>(y), As<const T>(call.inputs[kBias]),
                                  Rows(Samples(call)), given_.channels, stream),
                    "bias");
  }

  template <typename T>
  Status BackwardOf(const OpCall& call, cudaStream_t stream) noexcept {
    const CudnnConvolution* plan = nullptr;
    ENGINE_RETURN_IF_ERROR(PlanFor(Samples(call), scratch_bytes_, &plan));
    const void* const dy = call.output_grads[0].data;
    if (given_.bias && WantsGradient(call, kBias)) {
      ENGINE_RETURN_IF_ERROR(BiasGradient<T>(call, WorkspaceOf(call).partials, stream));
    }
    if (WantsGradient(call, kWeight)) {
      ENGINE_RETURN_IF_ERROR(WeightGradient<T>(call, *plan, stream));
    }
    if (!WantsGradient(call, kX)) return {};
    ENGINE_RETURN_IF_ERROR(WriteFilters<T>(call, WorkspaceOf(call).filters, stream));
    void* const dx = call.input_grads[kX].data;
    const bool sum = Accumulates(call, kX);
    return kTransposed ? WriteNarrow(call, *plan, dy, dx, sum, stream)
                       : WriteWide(call, *plan, dy, dx, sum, stream);
  }

  template <typename T>
  Status WeightGradient(const OpCall& call, const CudnnConvolution& plan,
                        cudaStream_t stream) const noexcept {
    const Workspace workspace = WorkspaceOf(call);
    const void *x = call.inputs[kX].data, *dy = call.output_grads[0].data, *wide = nullptr;
    ENGINE_RETURN_IF_ERROR(ReadWide(call, kTransposed ? dy : x, &wide, stream));
    ENGINE_RETURN_IF_ERROR(Run(plan, Pass::kFilters, wide, kTransposed ? x : dy, workspace.dfilters,
                               workspace.scratch, stream));
    const auto [count, rows, columns] = WeightMatrices();
    return Launched(
        LaunchTranspose(static_cast<const T*>(workspace.dfilters), call.input_grads[kWeight].f32(),
                        count, columns, rows, Accumulates(call, kWeight), stream),
        "transposition of the gradient of the weight");
  }

  template <typename T>
  Status BiasGradient(const OpCall& call, float* partials, cudaStream_t stream) const noexcept {
    const int64_t samples = Samples(call);
    return Launched(
        LaunchColumnSums(As<const T>(call.output_grads[0]), Rows(samples), given_.channels,
                         partials, Parts(samples), call.input_grads[kBias].f32(),
                         Accumulates(call, kBias), stream),
        "gradient of the bias");
  }

  const Attributes given_;
  Shape wide_;              // without padding; its samples do not count
  ConvolutionShape shape_;  // but for the samples
  bool pads_ = false;       // the wide plane is copied
  int64_t output_positions_ = 0;
  int64_t scratch_bytes_ = 0;  // of cuDNN, for a full batch
  int64_t partial_bytes_ = 0, padded_bytes_ = 0;
  std::map<int64_t, std::unique_ptr<CudnnConvolution>> plans_;  // by samples
};

}  // namespace

const OpFactory kMakeConv2d = kit::NewOp<ConvOp<false>>;
const OpFactory kMakeConvTranspose2d = kit::NewOp<ConvOp<true>>;

}  // namespace engine::cuda_ops
