// The promises of the shipped configurations, on the real data in the folder ENGINE_TEST_DATA.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"

namespace engine::test {
namespace {

class RealData : public ::testing::Test {
 protected:
  // The path of a data set, or an empty string with the reason why the test is skipped.
  static std::string Find(const std::string& name) {
    const char* folder = std::getenv("ENGINE_TEST_DATA");
    if (folder == nullptr) return "";
    const std::filesystem::path path = std::filesystem::absolute(folder) / name;
    return std::filesystem::exists(path) ? path.native() : "";
  }

  // Trains on two ranks; the last evaluation.
  nlohmann::json Train(const std::string& config, const std::vector<std::string>& overrides) {
    std::vector<std::string> arguments = {"run",
                                          ENGINE_TEST_SOURCE_DIR "/configs/" + config,
                                          "-q",
                                          "-n",
                                          "2",
                                          "--set",
                                          "output.metrics=run.jsonl"};
    for (const std::string& set : overrides) arguments.insert(arguments.end(), {"--set", set});
    EngineProcess process(folder_.path().native(), arguments);
    const Outcome outcome = process.Wait(kLongest);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return LastEvent(folder_ / "run.jsonl", "evaluation");
  }

  // Trains on MNIST; the test is skipped without it.
  void ExpectAccuracy(const std::string& config, double accuracy) {
    const std::string mnist = Find("mnist10k");
    if (mnist.empty()) GTEST_SKIP() << "ENGINE_TEST_DATA has no mnist10k";
    const auto evaluation =
        Train(config, {"data.mnist.images=" + mnist + "/t10k-images-idx3-ubyte.gz",
                       "data.mnist.labels=" + mnist + "/t10k-labels-idx1-ubyte.gz"});
    ASSERT_FALSE(evaluation.is_null());
    EXPECT_EQ(evaluation["targets"], 1000);
    EXPECT_GE(evaluation["accuracy"], accuracy);
  }

  static constexpr auto kLongest = std::chrono::seconds(900);
  TempFolder folder_;
};

using MnistTest = RealData;
using CnnTest = RealData;
using ShakespeareTest = RealData;

TEST_F(MnistTest, NinetyFivePercentOfHeldOutImagesWithTwoRanks) {
  ExpectAccuracy("mlp_mnist.pbtxt", 0.95);
}

TEST_F(CnnTest, NinetySevenPercentOfHeldOutImagesWithTwoRanks) {
  ExpectAccuracy("cnn_mnist.pbtxt", 0.97);
}

TEST_F(ShakespeareTest, BelowOnePointNineNatsPerByte) {
  const std::string text = Find("tinyshakespeare");
  if (text.empty()) GTEST_SKIP() << "ENGINE_TEST_DATA has no tinyshakespeare";
  const auto evaluation = Train(
      "gpt_text.pbtxt", {"data.text.path=" + text + "/input.txt", "train.evaluate_samples=0"});
  EXPECT_LT(evaluation["loss"], 1.9);
}

}  // namespace
}  // namespace engine::test
