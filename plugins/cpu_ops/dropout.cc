// dropout as kit/op_shapes.h has it.
//
// Whether an element is kept is a function of (seed, step, node) and of its position in the batch
// of all ranks, first_sample * elements of a sample + position in the call: so the mask is the same
// for any number of ranks and any cut of the batch, and Backward computes it again. A stream of
// 64-bit numbers (SplitMix64; Steele, Lea, Flood: Fast splittable pseudorandom number generators,
// 2014) belongs to each (seed, step, node):
//
//   word(i)      = Mix(start + i * increment)
//   bits(p)      = the low (even p) or high (odd p) half of word(p / 2)
//   kept(p)      = bits(p) >= round(rate * 2^32)
//   start        = Key(0),  increment = Key(1) | 1
//   Key(k)       = Mix(Mix(Mix(Mix(seed) ^ step) ^ node) ^ k)
//
// Mix adds 0x9e3779b97f4a7c15 and applies the finaliser of SplitMix64. The first dimension of the
// input is the samples.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu_op.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

CPU_OPS_INLINE uint64_t Finalize(uint64_t bits) noexcept {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

uint64_t Mix(uint64_t bits) noexcept {
  return Finalize(bits + 0x9e3779b97f4a7c15u);
}

// The random numbers of one op in one step, seen from the first element of the call.
struct Stream64 {
  uint64_t start, increment;
  uint64_t first;  // position of element 0

  explicit Stream64(const OpCall& call, uint64_t first_position) noexcept : first(first_position) {
    const uint64_t key = Mix(Mix(Mix(call.seed) ^ call.step) ^ call.node);
    start = Mix(key);
    increment = Mix(key ^ 1u) | 1u;
  }
};

struct Mask {
  Stream64 stream;
  uint32_t threshold;  // below it an element is dropped
  float scale;         // of the others
};

// Words that are made at a time: enough for the loops over them to be long, and few enough to stay
// in the first-level cache.
constexpr int64_t kWords = 128;

// target[i] becomes, or has added when `sum`, source[i] scaled or 0. They may be the same memory.
CPU_OPS_KERNEL void ApplyMask(const Mask& mask, const float* source, float* target, bool sum,
                              int64_t begin, int64_t end) {
  const float scale = mask.scale;
  const uint32_t threshold = mask.threshold;
  while (begin < end) {
    const uint64_t position = mask.stream.first + static_cast<uint64_t>(begin);
    const uint64_t start = mask.stream.start + (position / 2) * mask.stream.increment;
    uint64_t words[kWords];
    for (int64_t i = 0; i < kWords; ++i) {
      words[i] = Finalize(start + static_cast<uint64_t>(i) * mask.stream.increment);
    }
    uint32_t halves[2 * kWords];  // little-endian: the low half first
    std::memcpy(halves, words, sizeof words);
    const int64_t skip = static_cast<int64_t>(position % 2);
    const uint32_t* bits = halves + skip;
    const int64_t count = std::min(2 * kWords - skip, end - begin);
    const float* x = source + begin;
    float* y = target + begin;
    if (sum) {  // NOLINT(bugprone-branch-clone): one adds, one writes
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) y[i] += bits[i] >= threshold ? x[i] * scale : 0.0f;
    } else {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) y[i] = bits[i] >= threshold ? x[i] * scale : 0.0f;
    }
    begin += count;
  }
}

class DropoutOp final : public kit::ShapedOp<CpuOp, kit::DropoutRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    if (Identity() || call.training == 0) {
      PassGradient(x, y, false);
    } else {
      Apply(call, x, y, false);
    }
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView &dy = call.output_grads[0], &dx = call.input_grads[0];
    if (Identity()) {
      PassGradient(dy, dx, Accumulates(call, 0));
    } else {
      Apply(call, dy, dx, Accumulates(call, 0));
    }
    return {};
  }

  bool Identity() const noexcept { return given_.rate == 0.0; }

  void Apply(const OpCall& call, const TensorView& source, const TensorView& target,
             bool sum) const noexcept {
    // What is not cut into samples is the same on all ranks.
    const uint64_t first =
        given_.batched ? call.first_sample * static_cast<uint64_t>(source.shape.Count(1)) : 0;
    const double threshold = std::min(std::round(given_.rate * 0x1p32), 0x1p32 - 1);
    const Mask mask = {.stream = Stream64(call, first),
                       .threshold = static_cast<uint32_t>(threshold),
                       .scale = static_cast<float>(1.0 / (1.0 - given_.rate))};
    ForElements(source.count(), [&](int64_t begin, int64_t end) {
      ApplyMask(mask, source.f32(), target.f32(), sum, begin, end);
    });
  }
};

}  // namespace

const OpFactory kMakeDropout = kit::NewOp<DropoutOp>;

}  // namespace engine::cpu_ops
