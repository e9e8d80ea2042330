// The promises of the shipped configurations, on the real data in the folder ENGINE_TEST_DATA.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/temp_folder.h"

namespace engine::testing {
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
    nlohmann::json last;
    std::istringstream lines(ReadWhole(folder_ / "run.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto object = nlohmann::json::parse(line);
      if (object["event"] == "evaluation") last = object;
    }
    EXPECT_FALSE(last.is_null()) << "no evaluation";
    return last;
  }

  static constexpr auto kLongest = std::chrono::seconds(900);
  TempFolder folder_;
};

using MnistTest = RealData;
using CnnTest = RealData;
using ShakespeareTest = RealData;

TEST_F(MnistTest, NinetyFivePercentOfHeldOutImagesWithTwoRanks) {
  const std::string mnist = Find("mnist10k");
  if (mnist.empty()) GTEST_SKIP() << "ENGINE_TEST_DATA has no mnist10k";
  const auto evaluation =
      Train("mlp_mnist.pbtxt", {"data.mnist.images=" + mnist + "/t10k-images-idx3-ubyte.gz",
                                "data.mnist.labels=" + mnist + "/t10k-labels-idx1-ubyte.gz"});
  EXPECT_EQ(evaluation["targets"], 1000);
  EXPECT_GE(evaluation["accuracy"], 0.95);
}

TEST_F(CnnTest, NinetySevenPercentOfHeldOutImagesWithTwoRanks) {
  const std::string mnist = Find("mnist10k");
  if (mnist.empty()) GTEST_SKIP() << "ENGINE_TEST_DATA has no mnist10k";
  const auto evaluation =
      Train("cnn_mnist.pbtxt", {"data.mnist.images=" + mnist + "/t10k-images-idx3-ubyte.gz",
                                "data.mnist.labels=" + mnist + "/t10k-labels-idx1-ubyte.gz"});
  EXPECT_EQ(evaluation["targets"], 1000);
  EXPECT_GE(evaluation["accuracy"], 0.97);
}

TEST_F(ShakespeareTest, BelowOnePointNineNatsPerByte) {
  const std::string text = Find("tinyshakespeare");
  if (text.empty()) GTEST_SKIP() << "ENGINE_TEST_DATA has no tinyshakespeare";
  const auto evaluation = Train(
      "gpt_text.pbtxt", {"data.text.path=" + text + "/input.txt", "train.evaluate_samples=0"});
  EXPECT_LT(evaluation["loss"], 1.9);
}

}  // namespace
}  // namespace engine::testing
