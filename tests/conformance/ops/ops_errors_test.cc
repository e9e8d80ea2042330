// Wrong inputs of the ops that the engine's own models are made of: each is one sentence that names
// the op and what it found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/ext/accelerator.h"
#include "tests/conformance/ops/op_rig.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr TensorSpec F32(const Shape& shape, uint32_t batched = 1) {
  return {shape, DType::kFloat32, batched};
}
constexpr TensorSpec I32(const Shape& shape) {
  return {shape, DType::kInt32, 1};
}

struct BadInput {
  std::string op;
  OptionValues::Overrides attributes;
  std::vector<TensorSpec> inputs;
  std::string sentence;  // a part of it
};

void ExpectRefused(const LoadedOps& ops, const std::vector<BadInput>& bad) {
  for (const BadInput& input : bad) {
    const Result<MadeOp> made = MakeOp(ops, input.op, input.attributes, input.inputs);
    ASSERT_FALSE(made.ok()) << input.op << " accepted what should have been: " << input.sentence;
    EXPECT_EQ(made.status().code(), StatusCode::kConfig);
    EXPECT_THAT(made.status().message(),
                AllOf(StartsWith(input.op + ": "), HasSubstr(input.sentence)));
  }
}

class OpErrors : public ::testing::TestWithParam<std::string> {
 protected:
  const LoadedOps ops_ = LoadedOps::Load(GetParam(), 1);
};

TEST_P(OpErrors, InputsThatDoNotFitAreRefused) {
  const OptionValues::Overrides units = {{"units", "3"}}, heads = {{"heads", "4"}};
  const OptionValues::Overrides table = {{"vocabulary", "5"}, {"width", "2"}, {"positions", "4"}};
  const OptionValues::Overrides window = {{"kernel", "5"}};
  const OptionValues::Overrides far = {{"kernel", "2"}, {"padding", "2"}};
  const OptionValues::Overrides conv = {{"kernel", "5"}, {"padding", "0"}, {"channels", "2"}};
  const std::vector<BadInput> bad = {
      {"linear", units, {}, "got 0 inputs; it needs 1"},
      {"linear", units, {F32({4, 2}), F32({4, 2})}, "got 2 inputs; it needs 1"},
      {"linear", units, {I32({4, 2})}, "input 0 is int32 (4, 2); it needs float32"},
      {"linear", units, {F32({4})}, "input 0 is float32 (4)"},
      {"tied_linear", {}, {F32({4, 2})}, "got 1 inputs; it needs 2"},
      {"tied_linear", {}, {F32({4, 2}), F32({5, 3}, 0)}, "input 1 is float32 (5, 3)"},
      {"tied_linear", {}, {F32({4, 2}), F32({5, 2})}, "a parameter"},
      {"relu", {}, {I32({4})}, "input 0 is int32 (4); it needs float32"},
      {"gelu", {}, {}, "got 0 inputs"},
      {"tanh", {}, {I32({4})}, "input 0 is int32 (4)"},
      {"add", {}, {F32({4, 2}), F32({4, 3})}, "input 1 is float32 (4, 3)"},
      {"add", {}, {F32({4, 2}), F32({4, 2}, 0)}, "shape and batch dimension"},
      {"accumulate", {}, {F32({4}), F32({5})}, "input 1 is float32 (5)"},
      {"layer_norm", {}, {F32({4})}, "input 0 is float32 (4)"},
      {"batch_norm", {}, {}, "got 0 inputs"},
      {"batch_norm", {}, {F32({4})}, "input 0 is float32 (4); it needs float32 (B, ..., C)"},
      {"batch_norm", {}, {I32({4, 3})}, "input 0 is int32 (4, 3)"},
      {"batch_norm", {}, {F32({4, 3, 0})}, "input 0 is float32 (4, 3, 0)"},
      {"dropout", {{"rate", "0.1"}}, {I32({4})}, "input 0 is int32 (4)"},
      {"dropout", {{"rate", "0.1"}}, {}, "got 0 inputs"},
      {"dropout", {{"rate", "1"}}, {F32({4})}, "it needs 0 <= rate < 1"},
      {"dropout", {{"rate", "-0.1"}}, {F32({4})}, "a rate of -0.1 is no probability below 1"},
      {"embedding", table, {F32({4, 2})}, "input 0 is float32 (4, 2); it needs int32 (B, T)"},
      {"embedding", table, {I32({4, 5})}, "samples of 5 tokens are longer than the 4 positions"},
      {"attention", heads, {F32({2, 3, 10})}, "input 0 is float32 (2, 3, 10)"},
      {"attention", heads, {F32({2, 12})}, "input 0 is float32 (2, 12)"},
      {"attention", heads, {F32({2, 3, 18})}, "4 heads do not divide a width of 6"},
      {"to_channels_last", {}, {F32({4, 2, 3})}, "input 0 is float32 (4, 2, 3)"},
      {"to_channels_last", {}, {I32({4, 2, 3, 3})}, "it needs float32 (B, C, H, W)"},
      {"conv2d", conv, {}, "got 0 inputs"},
      {"conv2d", conv, {F32({4, 2, 3})}, "input 0 is float32 (4, 2, 3)"},
      {"conv2d", conv, {F32({4, 2, 9, 3})}, "a kernel of 5 with padding 0 does not fit"},
      {"max_pool", window, {F32({4, 9, 4, 3})}, "input 0 is float32 (4, 9, 4, 3)"},
      {"avg_pool", window, {F32({4, 9, 9})}, "input 0 is float32 (4, 9, 9)"},
      {"avg_pool", far, {F32({4, 9, 9, 1})}, "a kernel larger than the padding"},
      {"global_avg_pool", {}, {F32({4, 9})}, "input 0 is float32 (4, 9)"},
      {"flatten", {}, {I32({4, 2})}, "input 0 is int32 (4, 2)"},
      {"softmax_cross_entropy", {}, {F32({4}), I32({})}, "input 0 is float32 (4)"},
      {"softmax_cross_entropy", {}, {F32({4, 2}), I32({5})}, "input 1 is int32 (5)"},
      {"softmax_cross_entropy", {}, {F32({4, 2}), F32({4})}, "input 1 is float32 (4)"},
  };
  ExpectRefused(ops_, bad);
}

TEST_P(OpErrors, ActivationsInFloat32AreRefusedInBFloat16) {
  if (!HasBFloat16(ops_.plugin)) return;  // this library has one precision
  const OptionValues::Overrides heads = {{"heads", "2"}}, rate = {{"rate", "0.1"}};
  const std::vector<BadInput> bad = {
      {"tied_linear", {}, {F32({4, 2}), F32({5, 2}, 0)}, "input 1 is float32 (5, 2)"},
      {"mlp", {{"units", "3"}}, {F32({4, 2})}, "it needs bfloat16 (..., K)"},
      {"relu", {}, {F32({4})}, "input 0 is float32 (4); it needs bfloat16"},
      {"gelu", {}, {F32({4})}, "it needs bfloat16"},
      {"add", {}, {F32({4, 2}), F32({4, 2})}, "input 0 is float32 (4, 2); it needs bfloat16"},
      {"layer_norm", {}, {F32({4, 2})}, "it needs bfloat16 (..., C)"},
      {"add_layer_norm", {}, {F32({4, 2}), F32({4, 2})}, "it needs bfloat16 (..., C)"},
      {"dropout", rate, {F32({4, 2})}, "it needs bfloat16 (B, ...)"},
      {"attention", heads, {F32({2, 3, 12})}, "input 0 is float32 (2, 3, 12); it needs bfloat16"},
      {"softmax_cross_entropy", {}, {F32({4, 2}), I32({4})}, "it needs bfloat16 (..., V)"},
  };
  ExpectRefused(LoadedOps::Load(GetParam(), {.activation = DType::kBFloat16}), bad);
}

// Runs a case with element `index` of its int32 input set to `value`. With a library of its own, as
// a device that works on its own does not forget what it found.
Status RunWithInteger(const std::string& path, const OpCase& op_case, size_t input, size_t index,
                      double value) {
  const LoadedOps ops = LoadedOps::Load(path, 1);
  MadeOp made = MakeOp(ops, op_case);
  Problem problem = MakeProblem(op_case, made.signature, op_case.inputs[0].shape[0], 1);
  problem.inputs[input].values[index] = value;
  return RunOp(ops, made, op_case, problem).status;
}

// Whether the device finds faults in data by itself; it then knows only the place in the batch.
bool FindsFaultsLater(const LoadedOps& ops) {
  return Query<Accelerator>(*ops.library->device()) != nullptr;
}

TEST_P(OpErrors, TokensOutsideTheVocabularyAreBadData) {
  const OpCase op_case = {.name = "Embedding",
                          .op = "embedding",
                          .attributes = {{"vocabulary", "5"}, {"width", "2"}},
                          .inputs = {I32({3, 4})},
                          .reference = ReferenceEmbedding(),
                          .classes = 5};
  EXPECT_TRUE(RunWithInteger(GetParam(), op_case, 0, 6, 4).ok());
  for (double token : {5.0, -1.0, 2147483647.0}) {
    const Status status = RunWithInteger(GetParam(), op_case, 0, 6, token);
    EXPECT_EQ(status.code(), StatusCode::kBadData);
    const char* const place =
        FindsFaultsLater(ops_) ? " at position 6 of its batch" : " at position 2 of sample 1";
    EXPECT_THAT(status.message(), HasSubstr("token " + std::to_string(int64_t(token)) + place));
  }
}

TEST_P(OpErrors, TargetsThatAreNoClassAreBadData) {
  const OpCase op_case = {.name = "Loss",
                          .op = "softmax_cross_entropy",
                          .inputs = {F32({4, 5}), I32({4})},
                          .reference = ReferenceSoftmaxCrossEntropy(),
                          .classes = 5};
  EXPECT_TRUE(RunWithInteger(GetParam(), op_case, 1, 3, -1).ok());
  for (double target : {5.0, -2.0, -2147483648.0}) {
    const Status status = RunWithInteger(GetParam(), op_case, 1, 3, target);
    EXPECT_EQ(status.code(), StatusCode::kBadData);
    EXPECT_THAT(status.message(),
                HasSubstr("target " + std::to_string(int64_t(target)) + " at position 3"));
  }
}

INSTANTIATE_TEST_SUITE_P(, OpErrors, ::testing::ValuesIn(PluginPaths({"cpu_ops"})), kNameOfLibrary);

}  // namespace
}  // namespace engine::test
