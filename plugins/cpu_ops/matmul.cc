// y = scale a b, of two activations or of one and a parameter, each of which may be transposed.
// Dimensions before those of the matrices broadcast; the gradient of a repeated matrix is a sum,
// which one thread adds up in order.
#include <array>
#include <atomic>
#include <cstdint>

#include "cpu_op.h"
#include "gemm.h"
#include "kit/array_op_shapes.h"
#include "parallel.h"
#include "strided.h"

namespace engine::cpu_ops {
namespace {

// Dimensions before the matrices, and where each tensor has them: a, b, y.
struct Batches {
  Shape shape;
  std::array<Strides, 3> strides;
};

class MatmulOp final : public kit::ShapedOp<CpuOp, kit::MatmulRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call) noexcept override {
    const Matrices of(call, given_, call.outputs[0].shape);
    const GemmSizes sizes = {of.m, of.n, of.k};
    float* const y = call.outputs[0].f32();
    return Multiply(of.batches, 2, sizes, [&](const auto& at, bool) {
      return TryGemm(sizes, {of.a + at[0], given_.transpose_a}, {of.b + at[1], given_.transpose_b},
                     y + at[2], false, given_.scale);
    });
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const Matrices of(call, given_, call.output_grads[0].shape);
    ENGINE_RETURN_IF_ERROR(Gradient(call, of, 0));
    return Gradient(call, of, 1);
  }

  struct Matrices {
    const float *a, *b;
    int64_t m, n, k;
    Batches batches;

    // With one matrix b, and all of a in order, the rows of a are those of one matrix.
    Matrices(const OpCall& call, const kit::MatmulRule& given, const Shape& y) noexcept
        : a(call.inputs[0].f32()),
          b(call.inputs[1].f32()),
          m(given.M(call.inputs[0].shape)),
          n(given.N(call.inputs[1].shape)),
          k(given.K(call.inputs[0].shape)) {
      const Shape &of_a = call.inputs[0].shape, &of_b = call.inputs[1].shape;
      if (!given.transpose_a && of_b.Count(0, -2) == 1 && of_a.Count(0, -2) == y.Count(0, -2)) {
        m *= y.Count(0, -2);
        return;
      }
      const auto leading = [](Shape shape) {
        shape.ndim -= 2;
        return shape;
      };
      batches.shape = leading(y);
      batches.strides = {BroadcastStrides(leading(of_a), batches.shape),
                         BroadcastStrides(leading(of_b), batches.shape),
                         DenseStrides(batches.shape)};
      const int64_t sizes[] = {m * k, k * n, m * n};
      for (size_t t = 0; t < 3; ++t) {
        for (int64_t& stride : batches.strides[t]) stride *= sizes[t];
      }
    }
  };

  // product(places of the matrices, whether the target has a part of the sum already) for all
  // matrices; those with the same place in tensor `target` in one thread.
  template <typename Product>
  Status Multiply(const Batches& batches, size_t target, const GemmSizes& sizes,
                  const Product& product) const noexcept {
    Shape kept = batches.shape, repeated = batches.shape;
    for (int32_t i = 0; i < kept.ndim; ++i) {
      const bool repeats = batches.strides[target][static_cast<size_t>(i)] == 0;
      (repeats ? kept : repeated)[i] = 1;
    }
    const Loops<3> targets(kept, batches.strides), terms(repeated, batches.strides);
    std::atomic<int> error = 0;
    const auto multiply = [&](int32_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto base = PlacesOf(targets, i);
        for (int64_t j = 0; j < terms.count(); ++j) {
          auto at = PlacesOf(terms, j);
          for (size_t t = 0; t < 3; ++t) at[t] += base[t];
          const int status = product(at, j > 0);
          if (status != 0) error.store(status, std::memory_order_relaxed);
        }
      }
    };
    // With too few targets for all threads, those of each product share it.
    const bool apart = targets.count() >= omp_get_max_threads();
    const int64_t work = sizes.m * sizes.n * sizes.k * terms.count();
    ForEachPart(apart ? PartCount(targets.count() * work, kGrain) : 1, targets.count(), 1,
                multiply);
    return error == 0 ? Status() : GemmError(name(), sizes, error);
  }

  static std::array<int64_t, 3> PlacesOf(const Loops<3>& loops, int64_t i) noexcept {
    std::array<int64_t, 3> places = {};
    ForPieces(loops, i, i + 1, [&](const auto& offsets, int64_t) { places = offsets; });
    return places;
  }

  // da = dy b^T, db = a^T dy, transposed where the matrix itself is.
  Status Gradient(const OpCall& call, const Matrices& of, int32_t input) const noexcept {
    const auto i = static_cast<size_t>(input);
    if (!WantsGradient(call, i)) return {};
    const bool of_a = input == 0, sum = Accumulates(call, input);
    const bool swaps = of_a ? given_.transpose_a : given_.transpose_b;
    const bool other_swaps = of_a ? given_.transpose_b : given_.transpose_a;
    const int64_t rows = of_a ? of.m : of.k, columns = of_a ? of.k : of.n;
    const GemmSizes sizes = {swaps ? columns : rows, swaps ? rows : columns, of_a ? of.n : of.m};
    const float *const dy = call.output_grads[0].f32(), *const other = of_a ? of.b : of.a;
    float* const gradient = call.input_grads[i].f32();
    if (of.m * Count(of) == 0) ZeroGradient(call, input);
    return Multiply(of.batches, i, sizes, [&](const auto& at, bool later) {
      const Operand factor = {other + at[1 - i], other_swaps != !swaps};
      const Operand arriving = {dy + at[2], swaps};
      const bool factor_first = swaps == of_a;
      return TryGemm(sizes, factor_first ? factor : arriving, factor_first ? arriving : factor,
                     gradient + at[i], sum || later, given_.scale);
    });
  }

  static int64_t Count(const Matrices& of) noexcept { return of.batches.shape.Count(); }

  // Multiply-adds that are worth a thread.
  static constexpr int64_t kGrain = 1 << 18;
};

}  // namespace

const OpFactory kMakeMatmul = kit::NewOp<MatmulOp>;

}  // namespace engine::cpu_ops
