// A small convolution net against the numbers of tests/golden/make_conv_golden.py: logits, loss,
// every gradient, and ten steps of training.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "app/checkpoint/safetensors.h"
#include "tests/unit/train/single_rank.h"

namespace engine::test {
namespace {

constexpr char kConfig[] = R"(
model { net {
  layer { to_channels_last {} }
  layer { conv2d { channels: 20 kernel: 3 } }
  layer { relu {} }
  layer { max_pool { kernel: 3 stride: 2 padding: 1 } }
  layer { conv2d { channels: 33 kernel: 3 stride: 2 bias: false } }
  layer { relu {} }
  layer { avg_pool { kernel: 2 stride: 1 } }
  layer { residual { layer { conv2d { channels: 33 kernel: 3 } } } }
  layer { global_avg_pool {} }
  layer { linear { units: 4 } }
} }
data { synthetic {} }
train { steps: 10 global_batch: 5 }
sgd { momentum: 0.9 weight_decay: 0.01 }
plugins: ["null", "fifo_sched", "sgd", "cpu_ops"]
)";
constexpr ModelInputs kInputs{
    .input_shape = {3, 9, 8}, .target_shape = {}, .classes = 4, .max_samples = 5};

class ConvGolden : public ::testing::Test {
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
  double Step(uint64_t step, float learning_rate) {
    const auto result = executor_->Step({.input = Stored("input").data,
                                         .target = Stored("target").i32(),
                                         .samples = kInputs.max_samples,
                                         .step = step,
                                         .learning_rate = learning_rate});
    EXPECT_TRUE(result.ok()) << result.status().message();
    EXPECT_TRUE(executor_->Flush().ok());
    return result.ok() ? result->statistics.loss_sum / result->statistics.count : NAN;
  }

  std::vector<double> Numbers(const std::string& key) const {
    std::vector<double> numbers;
    std::istringstream list(file_->metadata().at(key));
    for (std::string text; std::getline(list, text, ',');) numbers.push_back(std::stod(text));
    return numbers;
  }

 private:
  Status Open() {
    ENGINE_ASSIGN_OR_RETURN(file_, checkpoint::SafetensorsFile::Open(
                                       ENGINE_TEST_SOURCE_DIR "/tests/golden/conv.safetensors"));
    ENGINE_ASSIGN_OR_RETURN(rank_, SingleRank::Make(kConfig));
    ENGINE_ASSIGN_OR_RETURN(executor_, rank_->MakeExecutor(kInputs));
    for (size_t i = 0; i < parameters().size(); ++i) {
      const TensorView view = memory().parameter(static_cast<int32_t>(i));
      const TensorView initial = Stored("initial." + parameters()[i].name);
      EXPECT_TRUE(initial.shape == view.shape) << parameters()[i].name;
      std::copy_n(initial.f32(), initial.count(), view.f32());
    }
    return {};
  }

  std::unique_ptr<checkpoint::SafetensorsFile> file_;
  std::unique_ptr<SingleRank> rank_;
  std::unique_ptr<exec::Executor> executor_;
};

// Compares elements times `scale`; `tolerance` is relative to the largest expected element.
void ExpectNear(const float* actual, const TensorView& expected, double scale, double tolerance,
                const std::string& what) {
  double largest = 0;
  for (int64_t i = 0; i < expected.count(); ++i) {
    largest = std::max(largest, std::abs(double{expected.f32()[i]}));
  }
  ASSERT_GT(largest, 0) << what;
  for (int64_t i = 0; i < expected.count(); ++i) {
    ASSERT_NEAR(actual[i] * scale, expected.f32()[i], tolerance * largest) << what << " at " << i;
  }
}

TEST_F(ConvGolden, LogitsAndLoss) {
  ASSERT_TRUE(
      memory().SetBatch(Stored("input").data, Stored("target").i32(), kInputs.max_samples).ok());
  ASSERT_TRUE(memory().RunForward().ok());
  ExpectNear(memory().logits().f32(), Stored("logits"), 1, 1e-5, "logits");
  const exec::StepStatistics& statistics = *memory().statistics();
  const double expected = Numbers("loss")[0];
  EXPECT_NEAR(statistics.loss_sum / statistics.count, expected, 1e-5 * expected);
}

TEST_F(ConvGolden, EachGradient) {
  Step(1, 0);
  const double mean = 1.0 / memory().statistics()->count;
  for (size_t i = 0; i < parameters().size(); ++i) {
    const std::string& name = parameters()[i].name;
    ExpectNear(memory().gradients() + memory().layout().offset[i], Stored("gradient." + name), mean,
               2e-5, name);
  }
}

TEST_F(ConvGolden, TenStepsOfTraining) {
  const std::vector<double> losses = Numbers("losses.sgd");
  ASSERT_EQ(losses.size(), 10u);
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(Step(i + 1, 0.1f), losses[i], 1e-5 * losses[i]) << "step " << i + 1;
  }
  for (size_t i = 0; i < parameters().size(); ++i) {
    const std::string& name = parameters()[i].name;
    ExpectNear(memory().parameter(static_cast<int32_t>(i)).f32(), Stored("final.sgd." + name), 1,
               1e-5, name);
  }
}

}  // namespace
}  // namespace engine::test
