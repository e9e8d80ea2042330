// Pairs of columns turned by an angle of their position (Su et al., arXiv:2104.09864):
//   y_i = x_i cos_i - x_j sin_i,  y_j = x_j cos_j + x_i sin_j.

#include "cpu_op.h"
#include "kit/array_op_shapes.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

// Pair p is columns p * step and p * step + distance. The transpose of a turn has the two sines
// exchanged, with the other sign.
struct Pairs {
  const float *cos, *sin;
  int64_t count, step, distance;
  bool back, sum;
};

// y may be x.
CPU_OPS_KERNEL void TurnRow(const Pairs& pairs, const float* x, float* y) {
  const float *cos = pairs.cos, *sin = pairs.sin;
  const int64_t step = pairs.step, distance = pairs.distance;
  const float sign = pairs.back ? -1.0f : 1.0f;
  const float* const first = pairs.back ? sin + distance : sin;
  const float* const second = pairs.back ? sin : sin + distance;
  const auto turn = [&](int64_t i, bool sum) CPU_OPS_INLINE_LAMBDA {
    const float a = x[i], b = x[i + distance];
    const float turned_a = a * cos[i] - b * (sign * first[i]);
    const float turned_b = b * cos[i + distance] + a * (sign * second[i]);
    y[i] = sum ? y[i] + turned_a : turned_a;
    y[i + distance] = sum ? y[i + distance] + turned_b : turned_b;
  };
  if (step != 1) {
    for (int64_t p = 0; p < pairs.count; ++p) turn(p * step, pairs.sum);
  } else if (pairs.sum) {
#pragma omp simd
    for (int64_t p = 0; p < pairs.count; ++p) turn(p, true);
  } else {
#pragma omp simd
    for (int64_t p = 0; p < pairs.count; ++p) turn(p, false);
  }
}

class RotaryEmbeddingOp final : public kit::ShapedOp<CpuOp, kit::RotaryRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call) noexcept override {
    Turn(call, call.inputs[0], call.outputs[0], false, false);
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    Turn(call, call.output_grads[0], call.input_grads[0], true, Accumulates(call, 0));
    return {};
  }

  void Turn(const OpCall& call, const TensorView& x, const TensorView& y, bool back,
            bool sum) const noexcept {
    const int64_t length = x.shape[-2], width = x.shape[-1];
    const float *cos = call.inputs[1].f32(), *sin = call.inputs[2].f32();
    ForRows(x.shape.Count(0, -1), width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row % length * width;
        const Pairs pairs = {.cos = cos + at,
                             .sin = sin + at,
                             .count = width / 2,
                             .step = given_.interleaved ? 2 : 1,
                             .distance = given_.interleaved ? 1 : width / 2,
                             .back = back,
                             .sum = sum};
        TurnRow(pairs, x.f32() + row * width, y.f32() + row * width);
      }
    });
  }
};

}  // namespace

const OpFactory kMakeRotaryEmbedding = kit::NewOp<RotaryEmbeddingOp>;

}  // namespace engine::cpu_ops
