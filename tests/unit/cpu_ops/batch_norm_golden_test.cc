// batch_norm against the numbers of tests/golden/make_batch_norm_golden.py: two steps of training,
// which move the running statistics, and an evaluation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "app/checkpoint/safetensors.h"
#include "tests/conformance/ops/op_rig.h"

namespace engine::test {
namespace {

struct Layer {
  std::string name;
  Shape shape;
  OptionValues::Overrides attributes;
};

void PrintTo(const Layer& layer, std::ostream* out) {
  *out << layer.name;
}

// `tolerance` is relative to the largest expected element.
void ExpectNear(const std::vector<float>& actual, const Tensor& expected, double tolerance,
                const std::string& what) {
  ASSERT_EQ(actual.size(), expected.values.size()) << what;
  double largest = 0;
  for (double value : expected.values) largest = std::max(largest, std::abs(value));
  ASSERT_GT(largest, 0) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected.values[i], tolerance * largest) << what << " at " << i;
  }
}

class BatchNormGolden : public ::testing::TestWithParam<Layer> {
 protected:
  void SetUp() override {
    auto file = checkpoint::SafetensorsFile::Open(ENGINE_TEST_SOURCE_DIR
                                                  "/tests/golden/batch_norm.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_ = std::move(*file);
    case_ = {.name = GetParam().name,
             .op = "batch_norm",
             .attributes = GetParam().attributes,
             .inputs = {{GetParam().shape, DType::kFloat32, 1}},
             .reference = {}};
    Result<MadeOp> made = MakeOp(ops_, case_.op, case_.attributes, case_.inputs);
    ASSERT_TRUE(made.ok()) << made.status().message();
    made_ = std::move(*made);
  }

  Tensor Stored(const std::string& name) const {
    const auto found = file_->Find(GetParam().name + "." + name);
    EXPECT_TRUE(found.ok()) << found.status().message();
    if (!found.ok()) return {};
    return {{found->shape, DType::kFloat32, 0},
            Values(found->f32(), found->f32() + found->count())};
  }

  // x, and the gradient of y, with these parameters.
  RunResult Run(Tensor x, Tensor dy, const std::vector<Tensor>& parameters, bool training) {
    x.spec.batched = dy.spec.batched = 1;
    Problem problem{{x}, {dy}};
    problem.inputs.insert(problem.inputs.end(), parameters.begin(), parameters.end());
    RunResult result = RunOp(ops_, made_, case_, problem, {.training = training});
    EXPECT_TRUE(result.status.ok()) << result.status.message();
    return result;
  }

 private:
  const LoadedOps ops_ =
      LoadedOps::Load(ENGINE_TEST_PLUGIN_DIR "/libengine_cpu_ops.so", /*threads=*/1);
  std::unique_ptr<checkpoint::SafetensorsFile> file_;
  OpCase case_;
  MadeOp made_;
};

TEST_P(BatchNormGolden, TwoStepsAndAnEvaluation) {
  std::vector<Tensor> parameters = {Stored("weight"), Stored("bias"), Stored("running_mean"),
                                    Stored("running_var")};
  for (const std::string step : {"1.", "2."}) {
    SCOPED_TRACE("step " + step);
    const RunResult result = Run(Stored(step + "x"), Stored(step + "dy"), parameters, true);
    ASSERT_EQ(result.parameters.size(), parameters.size());
    ExpectNear(result.outputs[0], Stored(step + "y"), 5e-7, "y");
    ExpectNear(result.gradients[0], Stored(step + "dx"), 2e-6, "dx");
    ExpectNear(result.gradients[1], Stored(step + "dweight"), 1e-6, "dweight");
    ExpectNear(result.gradients[2], Stored(step + "dbias"), 1e-6, "dbias");
    ExpectNear(result.parameters[2], Stored(step + "running_mean"), 2e-7, "running_mean");
    ExpectNear(result.parameters[3], Stored(step + "running_var"), 2e-7, "running_var");
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].values.assign(result.parameters[i].begin(), result.parameters[i].end());
    }
  }
  const RunResult result = Run(Stored("x"), Stored("y"), parameters, false);
  ExpectNear(result.outputs[0], Stored("y"), 5e-7, "y in evaluation");
}

INSTANTIATE_TEST_SUITE_P(
    , BatchNormGolden,
    ::testing::Values(Layer{"plane", Shape{5, 3, 4, 20}, {}},
                      Layer{"vector", Shape{6, 7}, {{"epsilon", "1e-3"}, {"momentum", "0.3"}}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace engine::test
