// Loops over tensors whose elements lie at regular distances: repeated, transposed or cut ones. What
// all broadcasting functions, reductions and ops that move elements are made of.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/tensor.h"
#include "parallel.h"

namespace engine::cpu_ops {

// Elements between neighbours along each dimension.
using Strides = std::array<int64_t, kMaxDims>;

Strides DenseStrides(const Shape& shape) noexcept;
// Of a dense x that is broadcast to the shape of y: 0 where it has one element for several.
Strides BroadcastStrides(const Shape& x, const Shape& y) noexcept;

// The elements of a shape, and where each of several tensors has them. Dimensions along which all
// of them step as along the next one are one; there is one at least.
template <size_t kTensors>
struct Loops {
  int32_t ndim = 0;
  std::array<int64_t, kMaxDims> extents = {};
  std::array<Strides, kTensors> strides = {};

  Loops(const Shape& shape, const std::array<Strides, kTensors>& of) noexcept {
    for (int32_t i = 0; i < shape.ndim; ++i) {
      const int64_t extent = shape[i];
      if (extent == 1) continue;
      const bool merges =
          ndim > 0 && std::equal(of.begin(), of.end(), strides.begin(),
                                 [&](const Strides& next, const Strides& last) {
                                   return last[Last()] == next[static_cast<size_t>(i)] * extent;
                                 });
      if (!merges) extents[static_cast<size_t>(ndim++)] = 1;
      extents[Last()] *= extent;
      for (size_t t = 0; t < kTensors; ++t) strides[t][Last()] = of[t][static_cast<size_t>(i)];
    }
    if (ndim > 0) return;
    extents[static_cast<size_t>(ndim++)] = 1;
    for (Strides& one : strides) one[0] = 1;
  }

  size_t Last() const noexcept { return static_cast<size_t>(ndim) - 1; }
  int64_t count() const noexcept {
    int64_t count = 1;
    for (size_t i = 0; i <= Last(); ++i) count *= extents[i];
    return count;
  }
};

// Calls body(offsets, length) for pieces of rows of the innermost dimension, which together are the
// elements [begin, end): where a piece begins in each tensor, and its elements.
template <size_t kTensors, typename Body>
void ForPieces(const Loops<kTensors>& loops, int64_t begin, int64_t end,
               const Body& body) noexcept {
  std::array<int64_t, kMaxDims> index = {};
  std::array<int64_t, kTensors> offsets = {};
  const auto move = [&](size_t dimension, int64_t steps) {
    for (size_t t = 0; t < kTensors; ++t) offsets[t] += steps * loops.strides[t][dimension];
  };
  int64_t rest = begin;
  for (size_t i = loops.Last() + 1; i-- > 0 && rest > 0;) {
    index[i] = rest % loops.extents[i];
    rest /= loops.extents[i];
    move(i, index[i]);
  }
  const size_t last = loops.Last();
  while (begin < end) {
    const int64_t length = std::min(loops.extents[last] - index[last], end - begin);
    body(offsets, length);
    begin += length;
    move(last, -index[last]);
    index[last] = 0;
    for (size_t i = last; i-- > 0;) {
      move(i, 1);
      if (++index[i] < loops.extents[i]) break;
      move(i, -index[i]);
      index[i] = 0;
    }
  }
}

// ForPieces over all elements, in threads.
template <size_t kTensors, typename Body>
void ForAllPieces(const Loops<kTensors>& loops, const Body& body) noexcept {
  ForElements(loops.count(),
              [&](int64_t begin, int64_t end) { ForPieces(loops, begin, end, body); });
}

// target = source, or += when `sum`, at the places of tensors 0 and 1 of `loops`.
void Copy(const Loops<2>& loops, const float* source, float* target, bool sum) noexcept;

// How several numbers become one: in double precision, so that the order is of no consequence.
struct Reduction {
  double start;
  void (*add_row)(double* to, const float* row, int64_t count);  // to[i] with row[i]
  double (*fold_row)(const float* row, int64_t count);           // all of a row
  double (*combine)(double a, double b);
};
extern const Reduction kSum, kLargest;

// Elements of a row that are reduced together.
constexpr int64_t kPiece = 256;

// Workspace of a Reduce, for partial results.
constexpr int64_t ReduceScratch(int32_t threads) noexcept {
  return int64_t{8} * threads * kPiece * static_cast<int64_t>(sizeof(double));
}

// How a reduction is cut: into units, each a piece of a row of the target, or one element where the
// rows themselves are reduced; where these are too few for the threads, into parts of each.
struct ReducePlan {
  int64_t blocks = 1;  // pieces of one row of the target
  int64_t units = 1;   // of the whole target
  int64_t parts = 1;
  int32_t split = -1;  // the dimension that is cut for the parts

  ReducePlan(const std::array<int64_t, kMaxDims>& extents, const Strides& target,
             int32_t ndim) noexcept;
};

// What is reduced to one unit.
template <size_t kTensors>
struct ReduceUnit {
  Loops<kTensors> loops;  // from `base`
  std::array<int64_t, kTensors> base = {};
  int64_t width = 1;  // of the piece of the target

  ReduceUnit(const Loops<kTensors>& all, const ReducePlan& plan, int64_t unit,
             int64_t part) noexcept
      : loops(all) {
    const Strides& target = all.strides[kTensors - 1];
    const int64_t column = unit % plan.blocks * kPiece;
    int64_t rest = unit / plan.blocks;
    for (size_t i = all.Last() + 1; i-- > 0;) {
      const int64_t extent = all.extents[i];
      int64_t first = 0;
      if (target[i] != 0 && i == all.Last()) {
        first = column;
        loops.extents[i] = width = std::min(kPiece, extent - column);
      } else if (target[i] != 0) {
        first = rest % extent;
        rest /= extent;
        loops.extents[i] = 1;
      } else if (static_cast<int32_t>(i) == plan.split) {
        first = extent * part / plan.parts;
        loops.extents[i] = extent * (part + 1) / plan.parts - first;
      }
      for (size_t t = 0; t < kTensors; ++t) base[t] += first * all.strides[t][i];
    }
  }
};

// Where results go: factor * result, added to what is there if `sum`.
struct ReduceTarget {
  float* data;
  bool sum;
  double factor = 1;

  void Store(int64_t offset, const double* results, int64_t count) const noexcept;
};

// Reduces what row(offsets, length, buffer) gives, at most kPiece numbers that lie one behind the
// other, over the dimensions along which the last tensor of `loops`, the target, has stride 0.
template <size_t kTensors, typename Row>
void Reduce(const Loops<kTensors>& loops, const Reduction& reduction, const ReduceTarget& target,
            void* scratch, const Row& row) noexcept {
  const size_t last = loops.Last();
  const bool keeps_last = loops.strides[kTensors - 1][last] != 0;
  const ReducePlan plan(loops.extents, loops.strides[kTensors - 1], loops.ndim);
  auto* const partials = static_cast<double*>(scratch);

  const auto reduce = [&](const ReduceUnit<kTensors>& unit, double* results) {
    std::fill_n(results, unit.width, reduction.start);
    ForPieces(unit.loops, 0, unit.loops.count(), [&](const auto& offsets, int64_t length) {
      for (int64_t begin = 0; begin < length; begin += kPiece) {
        const int64_t count = std::min(kPiece, length - begin);
        auto from = offsets;
        for (size_t t = 0; t < kTensors; ++t) {
          from[t] += unit.base[t] + begin * loops.strides[t][last];
        }
        float buffer[kPiece];
        const float* const numbers = row(from, count, buffer);
        if (keeps_last) {
          reduction.add_row(results, numbers, count);
        } else {
          results[0] = reduction.combine(results[0], reduction.fold_row(numbers, count));
        }
      }
    });
  };

  const int64_t tasks = plan.units * plan.parts;
  ForEachPart(PartCount(std::max(loops.count(), tasks), kElementGrain), tasks, 1,
              [&](int32_t, int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const ReduceUnit unit(loops, plan, i / plan.parts, i % plan.parts);
                  double results[kPiece];
                  reduce(unit, plan.parts > 1 ? partials + i * kPiece : results);
                  if (plan.parts == 1) target.Store(unit.base[kTensors - 1], results, unit.width);
                }
              });
  for (int64_t i = 0; plan.parts > 1 && i < plan.units; ++i) {
    const ReduceUnit unit(loops, plan, i, 0);
    double* const sums = partials + i * plan.parts * kPiece;
    for (int64_t part = 1; part < plan.parts; ++part) {
      for (int64_t j = 0; j < unit.width; ++j) {
        sums[j] = reduction.combine(sums[j], sums[part * kPiece + j]);
      }
    }
    target.Store(unit.base[kTensors - 1], sums, unit.width);
  }
}

// The same for the numbers at `source`, the places of tensor 0.
void Reduce(const Loops<2>& loops, const Reduction& reduction, const float* source,
            const ReduceTarget& target, void* scratch) noexcept;

}  // namespace engine::cpu_ops
