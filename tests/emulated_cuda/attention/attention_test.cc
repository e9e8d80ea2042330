// The kernels of attention on the host, against sums in double precision. What a GPU adds (its own
// rounding of exponentials, races, speed) is not judged here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "tests/emulated_cuda/attention/attention_values.h"

namespace engine::cuda_ops::test {
namespace {

// `tolerance` is of the root of the mean square of what is wanted, and eight times that of any one
// element.
template <typename T>
void ExpectNear(const std::vector<T>& got, const Doubles& want, double tolerance,
                const char* what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(Value(got[i]) - want[i]);
    ASSERT_FALSE(std::isnan(error)) << what << ", element " << i;
    largest = std::max(largest, error / (1 + std::abs(want[i])));
  }
  EXPECT_LE(Difference(ToDoubles(got), want), tolerance) << what;
  EXPECT_LE(largest, 8 * tolerance) << what;
}

using engine::test::AttentionResults;

template <typename T>
AttentionResults ByFormula(const Problem<T>& problem) {
  const AttentionShape& of = problem.shape;
  return engine::test::ComputeAttention({of.batch, of.length, of.heads, of.head_size, of.causal},
                                        ToDoubles(problem.qkv), ToDoubles(problem.dy));
}

// A score is a sum of products, whose rounding is relative to the lengths of the two vectors; a log
// sum is off by no more than the worst of its scores.
void ExpectLogSums(const std::vector<float>& got, const AttentionResults& want) {
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(Value(got[i]) - want.log_sums[i]), 2e-6 * want.magnitudes[i]) << i;
  }
}

// Rounding of bfloat16 is 2^-9 of a number: of y, which delta is made of, of p and of ds.
constexpr double kBf16Tolerance = 4e-3, kFloatTolerance = 2e-6;

template <typename T>
void ExpectMatches(const Results<T>& got, const Problem<T>& problem, double tolerance,
                   bool sum = false) {
  AttentionResults want = ByFormula(problem);
  for (size_t i = 0; sum && i < want.dqkv.size(); ++i) want.dqkv[i] += Value(problem.before[i]);
  ExpectNear(got.y, want.y, tolerance, "y");
  ExpectLogSums(got.log_sums, want);
  ExpectNear(got.dqkv, want.dqkv, tolerance, "dqkv");
}

TEST(FlashAttention, MatchesDoublePrecision) {
  for (const int head_size : {64, 128}) {
    for (const int length : {1, 63, 64, 65, 128, 200}) {
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "heads of " << head_size << ", length " << length);
        const Problem<Bf16> problem(AttentionShape{1, length, 1, head_size, causal});
        ExpectMatches(Compute(problem, Kernels::kFlash), problem, kBf16Tolerance);
      }
    }
  }
}

// With ENGINE_ATTENTION_OF_GPT2 in its sizes, which are for a device: emulated, they take minutes.
TEST(FlashAttention, LongSamplesWithManyHeads) {
  const bool large = std::getenv("ENGINE_ATTENTION_OF_GPT2") != nullptr;
  const int samples = large ? 4 : 3, length = large ? 1024 : 70, heads = large ? 12 : 3;
  for (const int head_size : {64, 128}) {
    const Problem<Bf16> problem(AttentionShape{samples, length, heads, head_size, true});
    const Results<Bf16> flash = Compute(problem, Kernels::kFlash),
                        plain = Compute(problem, Kernels::kPlain);
    ExpectNear(flash.y, ToDoubles(plain.y), kBf16Tolerance, "y");
    ExpectNear(flash.log_sums, ToDoubles(plain.log_sums), 1e-5, "log_sums");
    ExpectNear(flash.dqkv, ToDoubles(plain.dqkv), kBf16Tolerance, "dqkv");
    const Problem<Bf16> one(AttentionShape{1, length, 2, head_size, true});
    ExpectMatches(Compute(one, Kernels::kFlash), one, kBf16Tolerance);
  }
}

TEST(FlashAttention, AddsToGradients) {
  for (const int head_size : {64, 128}) {
    const Problem<Bf16> problem(AttentionShape{1, 90, 2, head_size, true});
    ExpectMatches(Compute(problem, Kernels::kFlash, true), problem, kBf16Tolerance, true);
  }
}

TEST(FlashAttention, RunsAreBitwiseEqual) {
  const Problem<Bf16> problem(AttentionShape{2, 150, 1, 64, true});
  const Results<Bf16> first = Compute(problem, Kernels::kFlash),
                      second = Compute(problem, Kernels::kFlash);
  EXPECT_EQ(ToDoubles(first.y), ToDoubles(second.y));
  EXPECT_EQ(first.log_sums, second.log_sums);
  EXPECT_EQ(ToDoubles(first.dqkv), ToDoubles(second.dqkv));
}

// Scores of hundreds: exponentials of what is not shifted by the largest would overflow.
TEST(FlashAttention, LargeScores) {
  Problem<Bf16> problem(AttentionShape{1, 130, 1, 64, true});
  for (Bf16& value : problem.qkv) value = Rounded<Bf16>(8 * Value(value));
  const Results<Bf16> flash = Compute(problem, Kernels::kFlash);
  const AttentionResults want = ByFormula(problem);
  ExpectNear(flash.y, want.y, kBf16Tolerance, "y");
  ExpectLogSums(flash.log_sums, want);
}

// In evaluation nothing is saved.
TEST(FlashAttention, LogSumsMayBeLeftOut) {
  const Problem<Bf16> problem(AttentionShape{1, 66, 1, 64, true});
  const Array<Bf16> qkv(problem.qkv), y(problem.dy.size());
  ASSERT_EQ(LaunchFlashForward(problem.shape, qkv.data(), y.data(), nullptr, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(ToDoubles(y.Read()), ToDoubles(Compute(problem, Kernels::kFlash).y));
}

TEST(FlashAttention, OtherHeadSizesAreRefused) {
  const Problem<Bf16> problem(AttentionShape{1, 2, 1, 32, true});
  const Array<Bf16> qkv(problem.qkv), y(problem.dy.size());
  EXPECT_EQ(LaunchFlashForward(problem.shape, qkv.data(), y.data(), nullptr, nullptr),
            cudaErrorInvalidValue);
  EXPECT_FALSE(IsFlashHeadSize(32));
}

TEST(PlainAttention, MatchesDoublePrecision) {
  for (const bool causal : {false, true}) {
    for (const int length : {1, 5, 32, 33, 70}) {
      const Problem<float> problem(AttentionShape{2, length, 2, 33, causal});
      SCOPED_TRACE(length);
      ExpectMatches(Compute(problem, Kernels::kPlain), problem, kFloatTolerance);
      ExpectMatches(Compute(problem, Kernels::kPlain, true), problem, kFloatTolerance, true);
      const Problem<Bf16> rounded(problem.shape);
      ExpectMatches(Compute(rounded, Kernels::kPlain), rounded, kBf16Tolerance);
    }
  }
}

// Of these a warp owns one row, not four.
TEST(PlainAttention, LargeHeads) {
  for (const int head_size : {1, 700, static_cast<int>(kMaxPlainHeadSize)}) {
    const Problem<float> problem(AttentionShape{1, 6, 1, head_size, true});
    SCOPED_TRACE(head_size);
    ExpectMatches(Compute(problem, Kernels::kPlain), problem, 1e-5);
  }
}

}  // namespace
}  // namespace engine::cuda_ops::test
