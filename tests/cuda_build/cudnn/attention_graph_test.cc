// What the graphs of attention compute, against its formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cudnn_attention.h"
#include "tests/conformance/ops/reference_attention.h"
#include "tests/cuda_build/cudnn/evaluate_graph.h"

namespace engine::cuda_ops::test {
namespace {

using Doubles = std::vector<double>;

Doubles RandomNumbers(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Doubles values(static_cast<size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

void ExpectNear(const Doubles& got, const Doubles& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 1e-6 * (1 + std::abs(want[i]))) << what << ", element " << i;
  }
}

// Layouts of the call are those of the kernels; its numbers are doubles here.
struct Call {
  Doubles qkv, dy, y, log_sums, delta, dqkv, dq_sums;

  explicit Call(const AttentionShape& shape)
      : qkv(RandomNumbers(shape.packed_offset(shape.batch, 0, QkvPart::kQuery), 1)),
        dy(RandomNumbers(shape.row_offset(shape.batch, 0), 2)),
        y(dy.size(), NAN),
        log_sums(static_cast<size_t>(shape.statistics_offset(shape.batch, 0)), NAN),
        delta(log_sums.size(), NAN),
        dqkv(qkv.size(), NAN),
        dq_sums(dy.size(), NAN) {}

  void Run(const AttentionGraph& of) {
    AttentionBackwardCall<double> call;
    call.qkv = qkv.data();
    call.y = y.data();
    call.dy = dy.data();
    call.dqkv = dqkv.data();
    call.log_sums = reinterpret_cast<const float*>(log_sums.data());
    call.delta = reinterpret_cast<float*>(delta.data());
    EvaluateGraph(of.graph, of.Memory(call, dq_sums.data()), GraphNumbers::kDoubles);
  }
};

TEST(AttentionGraph, BothPassesAreThoseOfTheFormulas) {
  for (const bool causal : {false, true}) {
    for (const bool deterministic : {false, true}) {
      const AttentionShape shape = {2, 7, 3, 6, causal};
      SCOPED_TRACE(::testing::Message() << "causal " << causal << " det. " << deterministic);
      Call call(shape);
      const auto want = engine::test::ComputeAttention({2, 7, 3, 6, causal}, call.qkv, call.dy);
      call.Run(AttentionForwardGraph(shape));
      ExpectNear(call.y, want.y, "y");
      ExpectNear(call.log_sums, want.log_sums, "log_sums");
      call.Run(AttentionBackwardGraph(shape, deterministic));
      ExpectNear(call.dqkv, want.dqkv, "dqkv");
    }
  }
}

// Scores of hundreds: exponentials of what is not shifted by the largest would be infinite.
TEST(AttentionGraph, LargeScores) {
  const AttentionShape shape = {1, 5, 1, 4, true};
  Call call(shape);
  for (double& value : call.qkv) value *= 30;
  call.Run(AttentionForwardGraph(shape));
  for (const double value : call.y) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace engine::cuda_ops::test
