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

class TransposeOp final : public kit::ShapedOp<MoveOp, kit::TransposeRule> {
  using ShapedOp::ShapedOp;

  StridedMap MapOf(int32_t, const TensorView& x, const TensorView& y) const noexcept override {
    StridedMap map = MapOver(y.shape);
    const StridedTensor dense = Dense(x);
    map.in[0] = dense;
    for (int32_t i = 0; i < y.shape.ndim; ++i)
      map.in[0].strides[i] = dense.strides[given_.order[i]];
    map.out = Dense(y);
    return map;
  }
};

class ExpandOp final : public kit::ShapedOp<MoveOp, kit::ExpandRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec>, OpSignature* signature) noexcept override {
    signature->workspace_bytes = kStridedScratchBytes;
    return {};
  }

  StridedMap MapOf(int32_t, const TensorView& x, const TensorView& y) const noexcept override {
    StridedMap map = MapOver(y.shape);
    map.in[0] = Repeated(x, y.shape.ndim);
    map.out = Dense(y);
    return map;
  }
};

// An input without samples among others with them is repeated for each.
class ConcatOp final : public kit::ShapedOp<MoveOp, kit::ConcatRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    int64_t begin = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      begins_[i] = std::exchange(begin, begin + inputs[i].shape[given_.axis]);
    }
    signature->workspace_bytes = kStridedScratchBytes;
    return {};
  }

  StridedMap MapOf(int32_t input, const TensorView& x,
                   const TensorView& y) const noexcept override {
    Shape part = y.shape;
    part[given_.axis] = x.shape[given_.axis];
    StridedMap map = MapOver(part);
    map.in[0] = x.shape == part ? Dense(x) : Repeated(x, part.ndim);
    map.out = Dense(y);
    Move(begins_[input] * map.out.strides[given_.axis], &map.out);
    return map;
  }

  int64_t begins_[kMaxOpInputs] = {};
};

class SliceOp final : public kit::ShapedOp<MoveOp, kit::SliceRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec> inputs, OpSignature*) noexcept override {
    leaves_out_ = given_.range.count < inputs[0].shape[given_.range.axis];
    return {};
  }

  StridedMap MapOf(int32_t, const TensorView& x, const TensorView& y) const noexcept override {
    StridedMap map = MapOver(y.shape);
    map.in[0] = Dense(x);
    int64_t& stride = map.in[0].strides[given_.range.axis];
    Move(given_.range.begin * stride, &map.in[0]);
    stride *= given_.range.step;
    map.out = Dense(y);
    return map;
  }
  bool LeavesOut() const noexcept override { return leaves_out_; }

  bool leaves_out_ = false;
};

// The gradient of a largest element is shared by all that are as large.
enum class Reduction { kSum, kMean, kMax };

template <Reduction kReduction>
class ReduceOp final : public kit::ShapedOp<MoveOp, kit::ReduceRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec>, OpSignature* signature) noexcept override {
    share_bytes_ =
        kReduction == Reduction::kMax ? AlignedBytes(signature->outputs[0].shape.Count() * 4) : 0;
    signature->workspace_bytes = kStridedScratchBytes + share_bytes_;
    return {};
  }

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
      if ((given_.axes >> i & 1) != 0) reduced *= x.shape[i];
    }
    if (kReduction == Reduction::kMean) map.p = 1 / static_cast<float>(reduced);
    return map;
  }

  // y on the axes of x.
  StridedTensor Kept(const Shape& x, const TensorView& y) const noexcept {
    StridedTensor tensor = {y.data, IsBf16(y), {}};
    int64_t stride = 1;
    for (int32_t i = x.ndim - 1; i >= 0; --i) {
      if ((given_.axes >> i & 1) != 0) continue;
      tensor.strides[i] = stride;
      stride *= x[i];
    }
    return tensor;
  }

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
