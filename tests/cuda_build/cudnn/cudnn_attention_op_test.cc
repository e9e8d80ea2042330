// The op attention with passes by cuDNN, whose plans are evaluated on the host (evaluated_plan.cc),
// against our own kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string_view>
#include <vector>

#include "cudnn_attention.h"
#include "ops.h"
#include "tests/cuda_build/cudnn/evaluated_plan.h"
#include "tests/emulated_cuda/attention/attention_values.h"
#include "tests/support/memory_host.h"

namespace engine::cuda_ops::test {
namespace {

struct Results {
  std::vector<Bf16> y, dqkv;
  std::vector<float> workspace;
  int cudnn_runs = 0;  // forward and backward

  void ExpectNear(const Results& want) const {
    ExpectNear(ToDoubles(y), ToDoubles(want.y));
    ExpectNear(ToDoubles(dqkv), ToDoubles(want.dqkv));
  }
  static void ExpectNear(const Doubles& got, const Doubles& want) {
    ASSERT_EQ(got.size(), want.size());
    double squares = 0, errors = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      squares += want[i] * want[i];
      errors += (got[i] - want[i]) * (got[i] - want[i]);
    }
    EXPECT_LE(std::sqrt(errors), 4e-3 * std::sqrt(squares));
  }
};

struct Settings {
  std::string_view attention = "auto";
  bool deterministic = false;
  bool sum = false;      // add to the gradient
  bool training = true;  // else nothing is saved, and there is no backward pass
  int32_t samples = 0;   // less than a full batch; 0: full
};

Results RunOp(const AttentionShape& full, const Settings& settings) {
  std::unique_ptr<CudaDevice> device;
  EXPECT_TRUE(CudaDevice::Create(0, 0, &device).ok());
  Stream* stream = nullptr;
  EXPECT_TRUE(device->CreateStream(&stream).ok());
  const std::unique_ptr<Stream> owned(stream);
  const OptionValue options[] = {
      {.name = "attention", .type = OptionType::kEnum, .string = settings.attention},
      {.name = "deterministic", .type = OptionType::kBool, .integer = settings.deterministic}};
  engine::test::MemoryHost host({}, std::make_shared<engine::test::MemoryStoreTable>());
  Cudnn cudnn;
  AttentionPlans plans(&cudnn, Options(options), &host);
  const OptionValue values[] = {
      {.name = "heads", .type = OptionType::kInt, .integer = full.heads},
      {.name = "causal", .type = OptionType::kBool, .integer = full.causal}};
  const std::unique_ptr<Op> op(kMakeAttention({.name = "attention",
                                              .device = device.get(),
                                              .precision = Precision::kBFloat16,
                                              .attention = &plans},
                                             Options(values)));
  OpSignature signature;
  const Shape full_batch = {full.batch, full.length, full.packed_width()};
  EXPECT_TRUE(
      op->Infer(std::vector<TensorSpec>{{full_batch, DType::kBFloat16, 1}}, &signature).ok());

  AttentionShape shape = full;
  if (settings.samples > 0) shape.batch = settings.samples;
  const int64_t rows = int64_t{shape.batch} * shape.length;
  const Array<Bf16> qkv(RandomValues<Bf16>(rows * shape.packed_width(), 1.0, 1)),
      dy(RandomValues<Bf16>(rows * shape.width(), 1.0, 2)),
      dqkv(RandomValues<Bf16>(rows * shape.packed_width(), 1.0, 3)), y(Size(rows * shape.width()));
  const Array<float> saved(Size(signature.saved_bytes / 4)),
      workspace(Size(signature.workspace_bytes / 4));
  const Shape packed = {shape.batch, shape.length, shape.packed_width()},
              plain = {shape.batch, shape.length, shape.width()};
  const TensorView inputs[] = {{qkv.data(), packed, DType::kBFloat16}},
                   outputs[] = {{y.data(), plain, DType::kBFloat16}},
                   output_grads[] = {{dy.data(), plain, DType::kBFloat16}},
                   input_grads[] = {{dqkv.data(), packed, DType::kBFloat16}};
  const OpCall call = {.inputs = inputs,
                       .outputs = outputs,
                       .output_grads = output_grads,
                       .input_grads = input_grads,
                       .accumulate = settings.sum ? 1u : 0u,
                       .training = settings.training ? 1u : 0u,
                       .saved = settings.training ? saved.data() : nullptr,
                       .workspace = workspace.data(),
                       .stream = stream};
  const int runs = EvaluatedPlanRuns();
  EXPECT_TRUE(op->Forward(call).ok());
  if (settings.training) {
    EXPECT_TRUE(op->Backward(call).ok());
  }
  EXPECT_TRUE(stream->Synchronize(10'000).ok());
  saved.Read();  // nothing behind it is written
  return {y.Read(), dqkv.Read(), workspace.Read(), EvaluatedPlanRuns() - runs};
}

constexpr AttentionShape kShape = {3, 70, 2, 64, true};

TEST(CudnnAttentionOp, BothPassesAreThoseOfOurKernels) {
  for (const bool causal : {false, true}) {
    AttentionShape shape = kShape;
    shape.causal = causal;
    const Results own = RunOp(shape, {.attention = "own"});
    EXPECT_EQ(own.cudnn_runs, 0);
    for (const Settings& settings :
         {Settings{}, Settings{.attention = "cudnn", .deterministic = true}}) {
      const Results cudnn = RunOp(shape, settings);
      EXPECT_EQ(cudnn.cudnn_runs, 2);
      cudnn.ExpectNear(own);
    }
  }
}

TEST(CudnnAttentionOp, OtherHeadSizesToo) {
  const AttentionShape shape = {1, 20, 3, 32, true};
  const Results cudnn = RunOp(shape, {});
  EXPECT_EQ(cudnn.cudnn_runs, 2);
  cudnn.ExpectNear(RunOp(shape, {.attention = "own"}));
}

// By default: the forward pass by cuDNN, and our own backward pass reads what it has saved.
TEST(CudnnAttentionOp, DeterministicTakesOurBackwardPass) {
  const Results mixed = RunOp(kShape, {.deterministic = true});
  EXPECT_EQ(mixed.cudnn_runs, 1);
  mixed.ExpectNear(RunOp(kShape, {.attention = "own"}));
}

TEST(CudnnAttentionOp, OurBackwardPassAddsToAGradient) {
  const Results sum = RunOp(kShape, {.sum = true});
  EXPECT_EQ(sum.cudnn_runs, 1);
  sum.ExpectNear(RunOp(kShape, {.attention = "own", .sum = true}));
}

TEST(CudnnAttentionOp, ABatchThatIsNotFull) {
  const Results cudnn = RunOp(kShape, {.samples = 2});
  EXPECT_EQ(cudnn.cudnn_runs, 2);
  cudnn.ExpectNear(RunOp(kShape, {.attention = "own", .samples = 2}));
}

// cuDNN writes the numbers of the rows all the same, in front of its scratch.
TEST(CudnnAttentionOp, EvaluationSavesNothing) {
  const Results cudnn = RunOp(kShape, {.training = false});
  EXPECT_EQ(cudnn.cudnn_runs, 1);
  for (int64_t i = 0; i < kShape.statistics_offset(kShape.batch, 0); ++i) {
    ASSERT_FALSE(std::isnan(cudnn.workspace[Size(i)])) << "row " << i;
  }
  cudnn.ExpectNear(RunOp(kShape, {.attention = "own", .training = false}));
}

}  // namespace
}  // namespace engine::cuda_ops::test
