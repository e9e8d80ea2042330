// The op attention with passes by cuDNN, whose plans are evaluated on the host (evaluated_plan.cc),
// against our own kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

#include "cudnn_attention.h"
#include "tests/cuda_build/cudnn/evaluated_plan.h"
#include "tests/emulated_cuda/attention/attention_op_run.h"
#include "tests/support/memory_host.h"

namespace engine::cuda_ops::test {
namespace {

struct Settings {
  std::string_view attention = "auto";
  bool deterministic = false;
  OpSettings op = {};
};

struct CudnnResults : OpResults<Bf16> {
  int cudnn_runs = 0;  // forward and backward

  void ExpectNear(const CudnnResults& want) const {
    EXPECT_LE(Difference(ToDoubles(y), ToDoubles(want.y)), 4e-3);
    EXPECT_LE(Difference(ToDoubles(dqkv), ToDoubles(want.dqkv)), 4e-3);
  }
};

CudnnResults RunOp(const AttentionShape& shape, const Settings& settings) {
  const OptionValue options[] = {
      {.name = "attention", .type = OptionType::kEnum, .string = settings.attention},
      {.name = "deterministic", .type = OptionType::kBool, .integer = settings.deterministic}};
  engine::test::MemoryHost host({}, std::make_shared<engine::test::MemoryStoreTable>());
  Cudnn cudnn;
  AttentionPlans plans(&cudnn, Options(options), &host);
  EvaluateAttention(true);
  const int runs = EvaluatedPlanRuns();
  OpResults<Bf16> results = RunAttentionOp<Bf16>(shape, settings.op, &plans);
  return {std::move(results), EvaluatedPlanRuns() - runs};
}

constexpr AttentionShape kShape = {3, 70, 2, 64, true};

TEST(CudnnAttentionOp, BothPassesAreThoseOfOurKernels) {
  for (const bool causal : {false, true}) {
    AttentionShape shape = kShape;
    shape.causal = causal;
    const CudnnResults own = RunOp(shape, {.attention = "own"});
    EXPECT_EQ(own.cudnn_runs, 0);
    for (const Settings& settings :
         {Settings{}, Settings{.attention = "cudnn", .deterministic = true}}) {
      const CudnnResults cudnn = RunOp(shape, settings);
      EXPECT_EQ(cudnn.cudnn_runs, 2);
      cudnn.ExpectNear(own);
    }
  }
}

// Heads of another size; with our own backward pass, which reads what the forward pass by cuDNN has
// saved, by default where runs must repeat and where it adds to a gradient; a batch that is not
// full.
TEST(CudnnAttentionOp, PassesAreMixedWhereTheyMustBe) {
  const struct {
    AttentionShape shape;
    Settings settings;
    int cudnn_runs;
  } cases[] = {{{1, 20, 3, 32, true}, {}, 2},
               {kShape, {.deterministic = true}, 1},
               {kShape, {.op = {.sum = true}}, 1},
               {kShape, {.op = {.samples = 2}}, 2}};
  for (const auto& one : cases) {
    const CudnnResults cudnn = RunOp(one.shape, one.settings);
    EXPECT_EQ(cudnn.cudnn_runs, one.cudnn_runs);
    cudnn.ExpectNear(RunOp(one.shape, {.attention = "own", .op = one.settings.op}));
  }
}

// cuDNN writes the numbers of the rows all the same, in front of its scratch.
TEST(CudnnAttentionOp, EvaluationSavesNothing) {
  const CudnnResults cudnn = RunOp(kShape, {.op = {.training = false}});
  EXPECT_EQ(cudnn.cudnn_runs, 1);
  for (int64_t i = 0; i < kShape.statistics_offset(kShape.batch, 0); ++i) {
    ASSERT_FALSE(std::isnan(cudnn.workspace[Size(i)])) << "row " << i;
  }
  cudnn.ExpectNear(RunOp(kShape, {.attention = "own", .op = {.training = false}}));
}

}  // namespace
}  // namespace engine::cuda_ops::test
