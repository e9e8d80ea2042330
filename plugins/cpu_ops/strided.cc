#include "strided.h"

#include <limits>

#include "cpu_op.h"
#include "simd.h"
#include "small_gemm.h"

namespace engine::cpu_ops {
namespace {

// Side of a tile of a transposition: source and target of one stay in the first-level cache.
constexpr int64_t kSide = 32;

// Sums that meet many rows are in double precision; within a row, of at most kPiece numbers, sixteen
// partial sums in float lose less than the last digit.
CPU_OPS_KERNEL void AddRow(double* sums, const float* row, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) sums[i] += row[i];
}

double SumRow(const float* row, int64_t count) noexcept {
  return ForProcessor([&]<typename V>(V) CPU_OPS_INLINE_LAMBDA {
    V sums = {};
    for (int64_t i = 0; i < count; i += kWidth<V>) sums += LoadAs<V>(row + i, LanesAt<V>(i, count));
    return Sum(sums);
  });
}

// What is not a number stays: every comparison with it is false.
CPU_OPS_INLINE double LargerOf(double a, double b) noexcept {
  return b > a || b != b ? b : a;
}

CPU_OPS_KERNEL void TakeLargest(double* largest, const float* row, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) largest[i] = LargerOf(largest[i], row[i]);
}

double LargestOfRow(const float* row, int64_t count) noexcept {
  return ForProcessor([&]<typename V>(V) CPU_OPS_INLINE_LAMBDA -> double {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    V largest = V{} + kLowest, sums = {};
    for (int64_t i = 0; i < count; i += kWidth<V>) {
      const V lanes = LoadAs<V>(row + i, LanesAt<V>(i, count), kLowest);
      largest = Larger(largest, lanes);
      sums += lanes - lanes;  // is no number for what is none, and for infinity
    }
    const float sum = Sum(sums);
    if (sum == 0.0f) return Largest(largest);
    double slowly = kLowest;
    for (int64_t i = 0; i < count; ++i) slowly = LargerOf(slowly, row[i]);
    return slowly;
  });
}

// A stride of 0 at the source repeats one number. What is contiguous on both sides, which is the
// usual case behind a moved or repeated dimension, is one block.
void CopyPiece(const float* source, int64_t source_stride, float* target, int64_t target_stride,
               int64_t count, bool sum) noexcept {
  if (source_stride == 1 && target_stride == 1) {
    if (sum) return Add(target, source, target, 0, count);
    std::copy_n(source, count, target);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    float& to = target[i * target_stride];
    to = source[i * source_stride] + (sum ? to : 0.0f);
  }
}

// Rows of the target are columns of the source: dimensions `column` of the loops and the last one.
void CopyTransposed(const Loops<2>& loops, size_t column, const float* source, float* target,
                    bool sum) noexcept {
  const size_t last = loops.Last();
  const int64_t rows = loops.extents[last], columns = loops.extents[column];
  const int64_t row_tiles = (rows + kSide - 1) / kSide;
  const int64_t tiles = row_tiles * ((columns + kSide - 1) / kSide);
  Loops<2> outer = loops;  // a matrix each
  outer.extents[last] = outer.extents[column] = 1;
  ForRows(outer.count() * tiles, kSide * kSide, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ForPieces(outer, i / tiles, i / tiles + 1, [&](const auto& offsets, int64_t) {
        const int64_t row = i % tiles % row_tiles * kSide, first = i % tiles / row_tiles * kSide;
        const int64_t source_stride = loops.strides[0][last];
        const int64_t target_stride = loops.strides[1][column];
        Transpose({source + offsets[0] + row * source_stride + first, source_stride},
                  std::min(kSide, rows - row), std::min(kSide, columns - first),
                  {target + offsets[1] + first * target_stride + row, target_stride}, sum);
      });
    }
  });
}

}  // namespace

const Reduction kSum = {0.0, AddRow, SumRow, [](double a, double b) { return a + b; }};
const Reduction kLargest = {-std::numeric_limits<double>::infinity(), TakeLargest, LargestOfRow,
                            LargerOf};

Strides DenseStrides(const Shape& shape) noexcept {
  return BroadcastStrides(shape, shape);
}

Strides BroadcastStrides(const Shape& x, const Shape& y) noexcept {
  Strides strides = {};
  for (int32_t i = 1, offset = y.ndim; i <= x.ndim; ++i) {
    const int32_t dimension = offset - i;
    const bool repeats = x[-i] == 1 && y[-i] != 1;
    strides[static_cast<size_t>(dimension)] = repeats ? 0 : x.Count(x.ndim - i + 1);
  }
  return strides;
}

// Targets are shared among threads as they are, where there are several times as many units as
// threads: then the order of a sum does not depend on the number of threads.
ReducePlan::ReducePlan(const std::array<int64_t, kMaxDims>& extents, const Strides& target,
                       int32_t ndim) noexcept {
  int64_t work = 1;
  for (int32_t i = 0; i < ndim; ++i) {
    const auto at = static_cast<size_t>(i);
    work *= extents[at];
    if (target[at] == 0) {
      if (split < 0) split = i;
    } else if (i < ndim - 1) {
      units *= extents[at];
    } else {
      blocks = (extents[at] + kPiece - 1) / kPiece;
    }
  }
  units *= blocks;
  const int64_t wanted = int64_t{4} * omp_get_max_threads();
  if (split < 0 || units == 0 || units >= wanted || omp_get_max_threads() == 1) return;
  const int64_t worthwhile = work / units / (kElementGrain / 4);
  parts = std::clamp(std::min(worthwhile, extents[static_cast<size_t>(split)]), int64_t{1},
                     (wanted + units - 1) / units);
}

void ReduceTarget::Store(int64_t offset, const double* results, int64_t count) const noexcept {
  float* const to = data + offset;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<float>(factor * results[i]) + (sum ? to[i] : 0.0f);
  }
}

void Reduce(const Loops<2>& loops, const Reduction& reduction, const float* source,
            const ReduceTarget& target, void* scratch) noexcept {
  const int64_t stride = loops.strides[0][loops.Last()];
  Reduce(loops, reduction, target, scratch,
         [&](const auto& offsets, int64_t count, float* buffer) -> const float* {
           const float* const from = source + offsets[0];
           if (stride == 1) return from;
           CopyPiece(from, stride, buffer, 1, count, false);
           return buffer;
         });
}

void Copy(const Loops<2>& loops, const float* source, float* target, bool sum) noexcept {
  const size_t last = loops.Last();
  const int64_t source_stride = loops.strides[0][last], target_stride = loops.strides[1][last];
  if (target_stride == 1 && source_stride > 1) {
    for (size_t i = 0; i < last; ++i) {
      if (loops.strides[0][i] == 1) return CopyTransposed(loops, i, source, target, sum);
    }
  }
  ForAllPieces(loops, [&](const auto& offsets, int64_t count) {
    CopyPiece(source + offsets[0], source_stride, target + offsets[1], target_stride, count, sum);
  });
}

}  // namespace engine::cpu_ops
