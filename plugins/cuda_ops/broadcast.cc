// Functions of several inputs that broadcast by NumPy's rules: add, subtract, multiply, divide,
// maximum, minimum, power; where(condition, a, b); prelu(x, weight). What is repeated gets the sum of
// the gradients of its repetitions. accumulate: add of equal shapes.
#include <string_view>

#include "cuda_op.h"
#include "kernels/elementwise.h"
#include "kit/array_op_shapes.h"
#include "strided_tensors.h"

namespace engine::cuda_ops {
namespace {

// y = value(inputs); the gradient of input i is slopes[i](a, b, dy) for the first two inputs a, b.
struct Form {
  MapFunction value;
  MapFunction slopes[3];
  float signs[3] = {1, 1, 1};  // p of the slopes
  uint32_t reads_inputs = 0;   // those of a and b that the slopes read
};

using enum MapFunction;
constexpr Form kSum = {kAdd, {kThird, kThird}};
constexpr Form kDifference = {kSubtract, {kThird, kThird}, {1, -1}};
constexpr Form kProduct = {kMultiply, {kTimesThird, kFirstTimesThird}, {}, 0b11};
constexpr Form kQuotient = {kDivide, {kOverSecond, kQuotientSlope}, {}, 0b11};
constexpr Form kLarger = {kMaximum, {kMaximumSlope, kMaximumSlopeSecond}, {}, 0b11};
constexpr Form kSmaller = {kMinimum, {kMinimumSlope, kMinimumSlopeSecond}, {}, 0b11};
constexpr Form kPowers = {kPower, {kPowerSlope, kPowerSlopeExponent}, {}, 0b11};
constexpr Form kSloped = {kPrelu, {kPreluSlope, kPreluSlopeSecond}, {}, 0b11};
constexpr Form kChoice = {kWhere, {kScale, kWhereSlope, kWhereSlopeOther}, {}, 0b01};

template <const Form& kForm>
class BroadcastOp final : public CudaOp {
 public:
  explicit BroadcastOp(const OpContext& context) noexcept
      : CudaOp(context), is_accumulate_(std::string_view(context.name) == "accumulate") {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference op = Inferring(inputs, signature);
    if constexpr (kForm.value == kAdd) {
      ENGINE_RETURN_IF_ERROR(is_accumulate_ ? kit::InferSum(op, true) : kit::InferAdd(op));
    } else if constexpr (kForm.value == kWhere) {
      ENGINE_RETURN_IF_ERROR(kit::InferWhere(op));
    } else if constexpr (kForm.value == kPrelu) {
      ENGINE_RETURN_IF_ERROR(kit::InferPrelu(op));
    } else {
      ENGINE_RETURN_IF_ERROR(kit::InferBinary(op, kForm.reads_inputs));
    }
    signature->workspace_bytes = kStridedScratchBytes;
    return {};
  }

 private:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& y = call.outputs[0];
    if constexpr (kForm.value == kAdd) {
      const TensorView &a = call.inputs[0], &b = call.inputs[1];
      if (a.shape == b.shape) {
        return WithElement(y.dtype, [&]<typename T>(T) {
          return Launched(LaunchSum(As<const T>(a), As<const T>(b), As<T>(y), y.count(), stream),
                          "forward");
        });
      }
    }
    StridedMap map = MapOver(y.shape);
    map.function = kForm.value;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      map.in[i] = Repeated(call.inputs[i], y.shape.ndim);
    }
    map.out = Dense(y);
    return Launched(LaunchStrided(map, nullptr, stream), "forward");
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& dy = call.output_grads[0];
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (!WantsGradient(call, i)) continue;
      const TensorView& dx = call.input_grads[i];
      const auto input = static_cast<int32_t>(i);
      if (kForm.value == kAdd && dx.shape == dy.shape && dx.dtype == dy.dtype) {
        ENGINE_RETURN_IF_ERROR(PassGradient(call, dy, input, stream));
        continue;
      }
      StridedMap map = MapOver(dy.shape);
      map.function = kForm.slopes[i];
      map.p = kForm.signs[i];
      for (size_t j = 0; j < 2; ++j) {
        const bool reads = (kForm.reads_inputs >> j & 1) != 0;
        if (reads) map.in[j] = Repeated(call.inputs[j], dy.shape.ndim);
      }
      map.in[2] = Dense(dy);
      map.out = Repeated(dx, dy.shape.ndim);
      map.sum = Accumulates(call, input);
      ENGINE_RETURN_IF_ERROR(Launched(LaunchStrided(map, call.workspace, stream), "backward"));
    }
    return {};
  }

  // It adds gradients, also those of parameters, which are float32 in every run.
  const bool is_accumulate_;
};

}  // namespace

// Same memory, where the op is done in place or the gradients are one: nothing is to be moved.
Status PassGradient(const TensorView& source, const TensorView& target, bool sum,
                    cudaStream_t stream) noexcept {
  if (source.data == target.data || target.count() == 0) return {};
  if (!sum) {
    return ToStatus(cudaMemcpyAsync(target.data, source.data, target.size_bytes(),
                                    cudaMemcpyDeviceToDevice, stream),
                    "passing a gradient on");
  }
  return WithElement(target.dtype, [&]<typename T>(T) {
    return ToStatus(
        LaunchSum(As<const T>(target), As<const T>(source), As<T>(target), target.count(), stream),
        "adding a gradient");
  });
}

Status PassGradient(const OpCall& call, const TensorView& source, int32_t input,
                    cudaStream_t stream) noexcept {
  const auto i = static_cast<size_t>(input);
  if (!WantsGradient(call, i)) return {};
  return PassGradient(source, call.input_grads[i], Accumulates(call, input), stream);
}

const OpFactory kMakeAccumulate = kit::NewOp<BroadcastOp<kSum>>;
const OpFactory kMakeAdd = kit::NewOp<BroadcastOp<kSum>>;
const OpFactory kMakeSubtract = kit::NewOp<BroadcastOp<kDifference>>;
const OpFactory kMakeMultiply = kit::NewOp<BroadcastOp<kProduct>>;
const OpFactory kMakeDivide = kit::NewOp<BroadcastOp<kQuotient>>;
const OpFactory kMakeMaximum = kit::NewOp<BroadcastOp<kLarger>>;
const OpFactory kMakeMinimum = kit::NewOp<BroadcastOp<kSmaller>>;
const OpFactory kMakePower = kit::NewOp<BroadcastOp<kPowers>>;
const OpFactory kMakePrelu = kit::NewOp<BroadcastOp<kSloped>>;
const OpFactory kMakeWhere = kit::NewOp<BroadcastOp<kChoice>>;

}  // namespace engine::cuda_ops
