// Functions of two inputs and where, with broadcasting. The gradient of an input that is repeated is
// a sum over the elements that it is repeated for.
#include <cmath>
#include <type_traits>

#include "cpu_op.h"
#include "kit/array_op_shapes.h"
#include "parallel.h"
#include "simd.h"
#include "strided.h"

namespace engine::cpu_ops {
namespace {

// A piece of a row. Inputs have a stride of 1, or of 0 where one number is repeated.
struct OperandRow {
  const float *a, *b, *y, *dy;
  int64_t a_stride, b_stride;
};
// target[i] = function of row i, or += when `sum`.
using RowKernel = void (*)(const OperandRow& row, float* target, bool sum, int64_t count);

struct BinaryFunction {
  RowKernel value;
  RowKernel gradients[2];  // of a and b; null where it is that of y
  uint32_t reads_inputs, reads_outputs;
};

// run(stride of a, stride of b), which are constants then.
template <typename Run>
CPU_OPS_INLINE void ForStrides(int64_t a_stride, int64_t b_stride, const Run& run) noexcept {
  using Zero = std::integral_constant<int64_t, 0>;
  using One = std::integral_constant<int64_t, 1>;
  if (a_stride == 1 && b_stride == 1) return run(One{}, One{});
  if (a_stride == 1) return run(One{}, Zero{});
  if (b_stride == 1) return run(Zero{}, One{});
  run(Zero{}, Zero{});
}

#define A row.a[i * a_stride]
#define B row.b[i * b_stride]
#define Y row.y[i]
#define DY row.dy[i]
#define CPU_OPS_ROW_KERNEL(Name, expression)                                                       \
  CPU_OPS_KERNEL void Name(const OperandRow& row, float* target, bool sum, int64_t count) {        \
    ForStrides(                                                                                    \
        row.a_stride, row.b_stride,                                                                \
        [&]([[maybe_unused]] auto a_stride, [[maybe_unused]] auto b_stride)                        \
            CPU_OPS_INLINE_LAMBDA {                                                                \
              if (sum) {                                                                           \
                _Pragma("omp simd") for (int64_t i = 0; i < count; ++i) target[i] += (expression); \
              } else {                                                                             \
                _Pragma("omp simd") for (int64_t i = 0; i < count; ++i) target[i] = (expression);  \
              }                                                                                    \
            });                                                                                    \
  }

// clang-format off: a table
CPU_OPS_ROW_KERNEL(AddValue, A + B)
constexpr BinaryFunction kAdd = {AddValue, {}, 0, 0};

CPU_OPS_ROW_KERNEL(SubtractValue, A - B)
CPU_OPS_ROW_KERNEL(SubtractB, -DY)
constexpr BinaryFunction kSubtract = {SubtractValue, {nullptr, SubtractB}, 0, 0};

CPU_OPS_ROW_KERNEL(MultiplyValue, A* B)
CPU_OPS_ROW_KERNEL(MultiplyA, DY* B)
CPU_OPS_ROW_KERNEL(MultiplyB, DY* A)
constexpr BinaryFunction kMultiply = {MultiplyValue, {MultiplyA, MultiplyB}, 0b11, 0};

CPU_OPS_ROW_KERNEL(DivideValue, A / B)
CPU_OPS_ROW_KERNEL(DivideA, DY / B)
CPU_OPS_ROW_KERNEL(DivideB, -DY* Y / B)
constexpr BinaryFunction kDivide = {DivideValue, {DivideA, DivideB}, 0b10, 1};

// Of two equal numbers each gets half of the gradient; what is no number stays.
CPU_OPS_ROW_KERNEL(MaximumValue, A > B || A != A ? A : B)
CPU_OPS_ROW_KERNEL(MaximumA, A > B ? DY : A == B ? 0.5f * DY : 0.0f)
CPU_OPS_ROW_KERNEL(MaximumB, A < B ? DY : A == B ? 0.5f * DY : 0.0f)
constexpr BinaryFunction kMaximum = {MaximumValue, {MaximumA, MaximumB}, 0b11, 0};

CPU_OPS_ROW_KERNEL(MinimumValue, A < B || A != A ? A : B)
constexpr BinaryFunction kMinimum = {MinimumValue, {MaximumB, MaximumA}, 0b11, 0};

CPU_OPS_ROW_KERNEL(PowerValue, std::pow(A, B))
CPU_OPS_ROW_KERNEL(PowerA, B == 0.0f ? 0.0f : DY * (B * std::pow(A, B - 1.0f)))
CPU_OPS_ROW_KERNEL(PowerB, A == 0.0f && B >= 0.0f ? 0.0f : DY * (Y * std::log(A)))
constexpr BinaryFunction kPower = {PowerValue, {PowerA, PowerB}, 0b11, 1};

CPU_OPS_ROW_KERNEL(PreluValue, A > 0.0f ? A : B * A)
CPU_OPS_ROW_KERNEL(PreluA, A > 0.0f ? DY : B * DY)
CPU_OPS_ROW_KERNEL(PreluB, A > 0.0f ? 0.0f : A * DY)
constexpr BinaryFunction kPrelu = {PreluValue, {PreluA, PreluB}, 0b11, 0};

// Of where, whose condition is A, and whose third input is a Y.
CPU_OPS_ROW_KERNEL(WhereA, A != 0.0f ? DY : 0.0f)
CPU_OPS_ROW_KERNEL(WhereB, A != 0.0f ? 0.0f : DY)
// clang-format on
#undef A
#undef B
#undef Y
#undef DY

// Gradient of `input` of a call, from `kernel` (null: that of y) and the inputs that it calls a and
// b.
void BroadcastGradient(const OpCall& call, size_t input, RowKernel kernel, const TensorView& a,
                       const TensorView& b) noexcept {
  if (!WantsGradient(call, input)) return;
  const TensorView &dy = call.output_grads[0], &target = call.input_grads[input];
  const bool sum = Accumulates(call, static_cast<int32_t>(input));
  const bool whole = target.count() == dy.count();
  if (whole && kernel == nullptr) return PassGradient(dy, target, sum);
  const Shape& shape = dy.shape;
  const Loops<4> loops(shape,
                       {DenseStrides(shape), BroadcastStrides(a.shape, shape),
                        BroadcastStrides(b.shape, shape), BroadcastStrides(target.shape, shape)});
  const auto row = [&](const auto& offsets) {
    return OperandRow{.a = a.f32() + offsets[1],
                      .b = b.f32() + offsets[2],
                      .y = call.outputs[0].f32() + offsets[0],
                      .dy = dy.f32() + offsets[0],
                      .a_stride = loops.strides[1][loops.Last()],
                      .b_stride = loops.strides[2][loops.Last()]};
  };
  if (whole) {
    ForAllPieces(loops, [&](const auto& offsets, int64_t count) {
      kernel(row(offsets), target.f32() + offsets[3], sum, count);
    });
    return;
  }
  Reduce(loops, kSum, {target.f32(), sum}, call.workspace,
         [&](const auto& offsets, int64_t count, float* buffer) -> const float* {
           if (kernel == nullptr) return dy.f32() + offsets[0];
           kernel(row(offsets), buffer, false, count);
           return buffer;
         });
}

template <const BinaryFunction& kFunction>
class BinaryOp : public CpuOp {
 public:
  using CpuOp::CpuOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    signature->workspace_bytes = ReduceScratch(threads());
    const kit::Inference inference = Inferring(inputs, signature);
    is_sum_ = &kFunction == &kAdd && inputs.size() == 2 && inputs[0].shape == inputs[1].shape &&
              inputs[0].batched == inputs[1].batched;
    if (&kFunction == &kAdd) return kit::InferAdd(inference);
    if (&kFunction == &kPrelu) return kit::InferPrelu(inference);
    return kit::InferBinary(inference, kFunction.reads_inputs, kFunction.reads_outputs);
  }
  bool TakesBFloat16() const noexcept override { return is_sum_; }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    const TensorView &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
    if (y.dtype == DType::kBFloat16) {
      ForElements(y.count(), [&](int64_t begin, int64_t end) {
        Add(As<BFloat16>(a), As<BFloat16>(b), As<BFloat16>(y), begin, end);
      });
      return {};
    }
    const Loops<3> loops(y.shape, {DenseStrides(y.shape), BroadcastStrides(a.shape, y.shape),
                                   BroadcastStrides(b.shape, y.shape)});
    ForAllPieces(loops, [&](const auto& offsets, int64_t count) {
      const OperandRow row = {.a = a.f32() + offsets[1],
                              .b = b.f32() + offsets[2],
                              .y = nullptr,
                              .dy = nullptr,
                              .a_stride = loops.strides[1][loops.Last()],
                              .b_stride = loops.strides[2][loops.Last()]};
      kFunction.value(row, y.f32() + offsets[0], false, count);
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    for (const size_t i : {0, 1}) {
      BroadcastGradient(call, i, kFunction.gradients[i], call.inputs[0], call.inputs[1]);
    }
    return {};
  }

 private:
  bool is_sum_ = false;  // of equal shapes, for which alone there is a kernel of bfloat16
};

// "accumulate", what the core adds gradients with, takes no others than equal shapes.
class AccumulateOp final : public BinaryOp<kAdd> {
 public:
  using BinaryOp::BinaryOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferSum(Inferring(inputs, signature), /*takes_float32=*/true);
  }
};

CPU_OPS_KERNEL void Select(const float* condition, int64_t condition_stride, const float* a,
                           int64_t a_stride, const float* b, int64_t b_stride, float* y,
                           int64_t count) {
  ForStrides(a_stride, b_stride, [&](auto a_step, auto b_step) CPU_OPS_INLINE_LAMBDA {
    if (condition_stride == 0) {
      const bool first = condition[0] != 0.0f;
      for (int64_t i = 0; i < count; ++i) y[i] = first ? a[i * a_step] : b[i * b_step];
      return;
    }
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float yes = a[i * a_step], no = b[i * b_step];
      y[i] = condition[i] != 0.0f ? yes : no;
    }
  });
}

class WhereOp final : public CpuOp {
 public:
  using CpuOp::CpuOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    signature->workspace_bytes = ReduceScratch(threads());
    return kit::InferWhere(Inferring(inputs, signature));
  }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    const TensorView &c = call.inputs[0], &a = call.inputs[1], &b = call.inputs[2];
    const TensorView& y = call.outputs[0];
    const Loops<4> loops(y.shape,
                         {DenseStrides(y.shape), BroadcastStrides(c.shape, y.shape),
                          BroadcastStrides(a.shape, y.shape), BroadcastStrides(b.shape, y.shape)});
    const auto stride = [&](size_t tensor) { return loops.strides[tensor][loops.Last()]; };
    ForAllPieces(loops, [&](const auto& offsets, int64_t count) {
      Select(c.f32() + offsets[1], stride(1), a.f32() + offsets[2], stride(2), b.f32() + offsets[3],
             stride(3), y.f32() + offsets[0], count);
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    BroadcastGradient(call, 1, WhereA, call.inputs[0], call.inputs[0]);
    BroadcastGradient(call, 2, WhereB, call.inputs[0], call.inputs[0]);
    return {};
  }
};

}  // namespace

const OpFactory kMakeAccumulate = kit::NewOp<AccumulateOp>;
const OpFactory kMakeAdd = kit::NewOp<BinaryOp<kAdd>>;
const OpFactory kMakeDivide = kit::NewOp<BinaryOp<kDivide>>;
const OpFactory kMakeMaximum = kit::NewOp<BinaryOp<kMaximum>>;
const OpFactory kMakeMinimum = kit::NewOp<BinaryOp<kMinimum>>;
const OpFactory kMakeMultiply = kit::NewOp<BinaryOp<kMultiply>>;
const OpFactory kMakePower = kit::NewOp<BinaryOp<kPower>>;
const OpFactory kMakePrelu = kit::NewOp<BinaryOp<kPrelu>>;
const OpFactory kMakeSubtract = kit::NewOp<BinaryOp<kSubtract>>;
const OpFactory kMakeWhere = kit::NewOp<WhereOp>;

}  // namespace engine::cpu_ops
