// Ops that move elements by strides, and reductions, which are what broadcasting is backwards:
// transpose, expand, concat, slice; reduce_sum, reduce_mean, reduce_max. Each says where the elements
// of an input are in the output; the gradient goes the same way back.
#include <utility>

#include "cuda_op.h"
#include "kit/array_move_shapes.h"
#include "strided_tensors.h"

namespace engine::cuda_ops {
namespace {

class MoveOp : public CudaOp {
 protected:
  using CudaOp::CudaOp;

  // From x, input `input`, to y: in[0] and out. Also of their gradients, and with other data types.
  virtual StridedMap MapOf(int32_t input, const TensorView& x,
                           const TensorView& y) const noexcept = 0;
  // Whether some elements of x go nowhere.
  virtual bool LeavesOut() const noexcept { return false; }

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const StridedMap map = MapOf(static_cast<int32_t>(i), call.inputs[i], call.outputs[0]);
      ENGINE_RETURN_IF_ERROR(Launched(LaunchStrided(map, call.workspace, stream), "forward"));
    }
    return {};
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (!WantsGradient(call, i)) continue;
      const auto input = static_cast<int32_t>(i);
      if (LeavesOut()) ENGINE_RETURN_IF_ERROR(ZeroGradient(call, input, stream));
      StridedMap map = MapOf(input, call.input_grads[i], call.output_grads[0]);
      std::swap(map.in[0], map.out);
      map.sum = Accumulates(call, input);
      ENGINE_RETURN_IF_ERROR(Launched(LaunchStrided(map, call.workspace, stream), "backward"));
    }
    return {};
  }
};

class TransposeOp final : public MoveOp {
 public:
  TransposeOp(const OpContext& context, const Options& attributes) noexcept
      : MoveOp(context), given_(attributes.Ints("order")) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferTranspose(Inferring(inputs, signature), given_, order_);
  }

 protected:
  StridedMap MapOf(int32_t, const TensorView& x, const TensorView& y) const noexcept override {
    StridedMap map = MapOver(y.shape);
    const StridedTensor dense = Dense(x);
    map.in[0] = dense;
    for (int32_t i = 0; i < y.shape.ndim; ++i) map.in[0].strides[i] = dense.strides[order_[i]];
    map.out = Dense(y);
    return map;
  }

 private:
  const kit::DimList given_;
  int32_t order_[kMaxDims] = {};
};

class ExpandOp final : public MoveOp {
 public:
  ExpandOp(const OpContext& context, const Options& attributes) noexcept
      : MoveOp(context), given_(attributes.Ints("shape")) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    signature->workspace_bytes = kStridedScratchBytes;
    return kit::InferExpand(Inferring(inputs, signature), given_);
  }

 protected:
  StridedMap MapOf(int32_t, const TensorView& x, const TensorView& y) const noexcept override {
    StridedMap map = MapOver(y.shape);
    map.in[0] = Repeated(x, y.shape.ndim);
    map.out = Dense(y);
    return map;
  }

 private:
  const kit::DimList given_;
};

// An input without samples among others with them is repeated for each.
class ConcatOp final : public MoveOp {
 public:
  ConcatOp(const OpContext& context, const Options& attributes) noexcept
      : MoveOp(context), given_(attributes.Int("axis")) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferConcat(Inferring(inputs, signature), given_, &axis_));
    int64_t begin = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      begins_[i] = std::exchange(begin, begin + inputs[i].shape[axis_]);
    }
    signature->workspace_bytes = kStridedScratchBytes;
    return {};
  }

 protected:
  StridedMap MapOf(int32_t input, const TensorView& x,
                   const TensorView& y) const noexcept override {
    Shape part = y.shape;
    part[axis_] = x.shape[axis_];
    StridedMap map = MapOver(part);
    map.in[0] = x.shape == part ? Dense(x) : Repeated(x, part.ndim);
    map.out = Dense(y);
    Move(begins_[input] * map.out.strides[axis_], &map.out);
    return map;
  }

 private:
  const int64_t given_;
  int32_t axis_ = 0;
  int64_t begins_[kMaxOpInputs] = {};
};

class SliceOp final : public MoveOp {
 public:
  SliceOp(const OpContext& context, const Options& attributes) noexcept
      : MoveOp(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferSlice(Inferring(inputs, signature), given_, &range_));
    leaves_out_ = range_.count < inputs[0].shape[range_.axis];
    return {};
  }

 protected:
  StridedMap MapOf(int32_t, const TensorView& x, const TensorView& y) const noexcept override {
    StridedMap map = MapOver(y.shape);
    map.in[0] = Dense(x);
    int64_t& stride = map.in[0].strides[range_.axis];
    Move(range_.begin * stride, &map.in[0]);
    stride *= range_.step;
    map.out = Dense(y);
    return map;
  }
  bool LeavesOut() const noexcept override { return leaves_out_; }

 private:
  const kit::SliceAttributes given_;
  kit::AxisRange range_;
  bool leaves_out_ = false;
};

// The gradient of a largest element is shared by all that are as large.
enum class Reduction { kSum, kMean, kMax };

template <Reduction kReduction>
class ReduceOp final : public MoveOp {
 public:
  ReduceOp(const OpContext& context, const Options& attributes) noexcept
      : MoveOp(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    constexpr bool kMax = kReduction == Reduction::kMax;
    ENGINE_RETURN_IF_ERROR(kit::InferReduce(Inferring(inputs, signature), given_, kMax, &axes_));
    share_bytes_ = kMax ? AlignedBytes(signature->outputs[0].shape.Count() * 4) : 0;
    signature->workspace_bytes = kStridedScratchBytes + share_bytes_;
    return {};
  }

 protected:
  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (kReduction != Reduction::kMax) return MoveOp::DoBackward(call, stream);
    if (!WantsGradient(call, 0)) return {};
    const TensorView &x = call.inputs[0], &y = call.outputs[0], &dy = call.output_grads[0];
    const TensorView share = {static_cast<char*>(call.workspace) + kStridedScratchBytes, y.shape,
                              DType::kFloat32};
    // How many are as large; the share of each; dx.
    StridedMap count = MapOver(x.shape);
    count.function = MapFunction::kEqual;
    count.in[0] = Dense(x);
    count.in[1] = Kept(x.shape, y);
    count.out = Kept(x.shape, share);
    ENGINE_RETURN_IF_ERROR(Launched(LaunchStrided(count, call.workspace, stream), "backward"));
    StridedMap divide = MapOver(y.shape);
    divide.function = MapFunction::kOverSecond;
    divide.in[1] = Dense(share);
    divide.in[2] = Dense(dy);
    divide.out = Dense(share);
    ENGINE_RETURN_IF_ERROR(Launched(LaunchStrided(divide, nullptr, stream), "backward"));
    StridedMap spread = count;
    spread.function = MapFunction::kWhereEqual;
    spread.in[2] = count.out;
    spread.out = Dense(call.input_grads[0]);
    spread.sum = Accumulates(call, 0);
    return Launched(LaunchStrided(spread, nullptr, stream), "backward");
  }

  StridedMap MapOf(int32_t, const TensorView& x, const TensorView& y) const noexcept override {
    StridedMap map = MapOver(x.shape);
    map.in[0] = Dense(x);
    map.out = Kept(x.shape, y);
    map.largest = kReduction == Reduction::kMax;
    int64_t reduced = 1;
    for (int32_t i = 0; i < x.shape.ndim; ++i) {
      if ((axes_ >> i & 1) != 0) reduced *= x.shape[i];
    }
    if (kReduction == Reduction::kMean) map.p = 1 / static_cast<float>(reduced);
    return map;
  }

 private:
  // y on the axes of x.
  StridedTensor Kept(const Shape& x, const TensorView& y) const noexcept {
    StridedTensor tensor = {y.data, IsBf16(y), {}};
    int64_t stride = 1;
    for (int32_t i = x.ndim - 1; i >= 0; --i) {
      if ((axes_ >> i & 1) != 0) continue;
      tensor.strides[i] = stride;
      stride *= x[i];
    }
    return tensor;
  }

  const kit::ReduceAttributes given_;
  uint32_t axes_ = 0;
  int64_t share_bytes_ = 0;
};

}  // namespace

const OpFactory kMakeTranspose = kit::NewOp<TransposeOp>;
const OpFactory kMakeExpand = kit::NewOp<ExpandOp>;
const OpFactory kMakeConcat = kit::NewOp<ConcatOp>;
const OpFactory kMakeSlice = kit::NewOp<SliceOp>;
const OpFactory kMakeReduceSum = kit::NewOp<ReduceOp<Reduction::kSum>>;
const OpFactory kMakeReduceMean = kit::NewOp<ReduceOp<Reduction::kMean>>;
const OpFactory kMakeReduceMax = kit::NewOp<ReduceOp<Reduction::kMax>>;

}  // namespace engine::cuda_ops
