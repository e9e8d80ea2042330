// Models over images against the numbers of tests/golden/make_image_golden.py: loss, every
// gradient, and parameters, running statistics and evaluation after a step.

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/train/golden_run.h"

namespace engine::test {
namespace {

struct Case {
  const char* name;  // of the file
  const char* model;
  Shape image;
  int64_t samples;
};

const Case kCases[] = {
    {"cnn", "cnn { channels: [6, 10] }", {1, 9, 8}, 5},
    {"resnet", "resnet { blocks: [2, 1] width: 6 }", {3, 20, 17}, 4},
    {"bottleneck", "resnet { blocks: [1, 2] width: 3 bottleneck: true stem: CIFAR }", {3, 6, 5}, 4},
};

class ImageGolden : public ::testing::TestWithParam<Case>, public GoldenRun {
 protected:
  void SetUp() override {
    const std::string config = std::string("model { ") + GetParam().model +
                               " }\ndata { synthetic {} } train { steps: 1 global_batch: 4 }\n"
                               "sgd { momentum: 0.9 weight_decay: 0.01 }\n" +
                               OpsOptionsUnderTest() +
                               "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"" + OpsUnderTest() +
                               "\"]\n";
    const Status status = Open(GetParam().name, config,
                               {.input_shape = GetParam().image,
                                .target_shape = {},
                                .classes = 4,
                                .max_samples = GetParam().samples});
    ASSERT_TRUE(status.ok()) << status.message();
  }
};

INSTANTIATE_TEST_SUITE_P(Models, ImageGolden, ::testing::ValuesIn(kCases),
                         [](const auto& made) { return std::string(made.param.name); });

TEST_P(ImageGolden, LossAndEachGradient) {
  const double loss = Stored("loss").f32()[0];
  EXPECT_NEAR(Step(1, 0), loss, 1e-5 * loss);
  const double mean = 1.0 / StatisticsIn(memory()).count;
  size_t trained = 0;
  for (size_t i = 0; i < parameters().size(); ++i) {
    const graph::Parameter& parameter = parameters()[i];
    if (parameter.buffer) continue;
    ExpectNear(GradientOf(memory(), static_cast<int32_t>(i)), Stored("gradient." + parameter.name),
               mean, 5e-5, parameter.name);
    ++trained;
  }
  EXPECT_EQ(trained, memory().layout().parameters.size());
}

TEST_P(ImageGolden, OneStepAndTheEvaluationAfterIt) {
  Step(1, 0.1f);
  for (size_t i = 0; i < parameters().size(); ++i) {
    const std::string& name = parameters()[i].name;
    ExpectNear(Floats(memory(), memory().parameter(static_cast<int32_t>(i))),
               Stored("final." + name), 1, 1e-5, name);
  }
  ASSERT_TRUE(SetBatch().ok());
  ASSERT_TRUE(memory().RunForward().ok());
  ExpectNear(Floats(memory(), memory().logits()), Stored("evaluation"), 1, 2e-5, "evaluation");
}

}  // namespace
}  // namespace engine::test
