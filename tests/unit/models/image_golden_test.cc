// Models over images against the numbers of tests/golden/make_image_golden.py: loss, every
// gradient, and parameters, running statistics and evaluation after a step.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "app/checkpoint/safetensors.h"
#include "tests/unit/train/single_rank.h"
#include "tests/unit/train/values_on_device.h"

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

class ImageGolden : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Status status = Open();
    ASSERT_TRUE(status.ok()) << status.message();
  }

  exec::ModelMemory& memory() { return executor_->memory(); }
  const std::vector<graph::Parameter>& parameters() { return memory().graph().parameters; }

  TensorView Stored(const std::string& name) const {
    const auto found = file_->Find(name);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : TensorView{};
  }

  // The mean loss before the update.
  double Step(float learning_rate) {
    const auto result = StepAndFlush(*executor_, {.input = Stored("input").data,
                                                  .target = Stored("target").i32(),
                                                  .samples = GetParam().samples,
                                                  .learning_rate = learning_rate});
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? result->loss_sum / result->count : NAN;
  }

 private:
  Status Open() {
    ENGINE_ASSIGN_OR_RETURN(file_, checkpoint::SafetensorsFile::Open(
                                       GoldenFile(std::string(GetParam().name) + ".safetensors")));
    ENGINE_ASSIGN_OR_RETURN(
        rank_,
        SingleRank::Make(std::string("model { ") + GetParam().model +
                         " }\ndata { synthetic {} } train { steps: 1 global_batch: 4 }\n"
                         "sgd { momentum: 0.9 weight_decay: 0.01 }\n" +
                         OpsOptionsUnderTest() + "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"" +
                         OpsUnderTest() + "\"]\n"));
    ENGINE_ASSIGN_OR_RETURN(executor_, rank_->MakeExecutor({.input_shape = GetParam().image,
                                                            .target_shape = {},
                                                            .classes = 4,
                                                            .max_samples = GetParam().samples}));
    for (size_t i = 0; i < parameters().size(); ++i) {
      const TensorView view = memory().parameter(static_cast<int32_t>(i));
      const TensorView initial = Stored("initial." + parameters()[i].name);
      EXPECT_TRUE(initial.shape == view.shape) << parameters()[i].name;
      ENGINE_RETURN_IF_ERROR(SetParameter(memory(), static_cast<int32_t>(i), initial));
    }
    return {};
  }

  std::unique_ptr<checkpoint::SafetensorsFile> file_;
  std::unique_ptr<SingleRank> rank_;
  std::unique_ptr<exec::Executor> executor_;
};

INSTANTIATE_TEST_SUITE_P(Models, ImageGolden, ::testing::ValuesIn(kCases),
                         [](const auto& made) { return std::string(made.param.name); });

TEST_P(ImageGolden, LossAndEachGradient) {
  const double loss = Stored("loss").f32()[0];
  EXPECT_NEAR(Step(0), loss, 1e-5 * loss);
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
  Step(0.1f);
  for (size_t i = 0; i < parameters().size(); ++i) {
    const std::string& name = parameters()[i].name;
    ExpectNear(Floats(memory(), memory().parameter(static_cast<int32_t>(i))),
               Stored("final." + name), 1, 1e-5, name);
  }
  ASSERT_TRUE(
      memory().SetBatch(Stored("input").data, Stored("target").i32(), GetParam().samples).ok());
  ASSERT_TRUE(memory().RunForward().ok());
  ExpectNear(Floats(memory(), memory().logits()), Stored("evaluation"), 1, 2e-5, "evaluation");
}

}  // namespace
}  // namespace engine::test
