// What is done with a trained model: eval and predict.

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

using Json = nlohmann::json;

class Predict : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    Output(RunConfig("-q --set output.checkpoint=m.safetensors"));
  }

  Json Evaluate(const std::string& words) const {
    return Json::parse(Output(Run("eval m.safetensors --json " + words)));
  }
  std::vector<std::string> Lines(const std::string& words) const {
    std::istringstream text(Output(Run("predict m.safetensors " + words)));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
};

TEST_F(Predict, RanksEvaluateWhatOneDoes) {
  const Json one = Evaluate("--mistakes 3");
  ASSERT_EQ(one["mistakes"].size(), 3u) << one;
  EXPECT_GT(one["mistakes"][0]["margin"], one["mistakes"][2]["margin"]);
  EXPECT_EQ(one["targets"], 16);
  EXPECT_EQ(one["classes"].size(), 4u);
  for (const std::string ranks : {"2", "5"}) {
    const Json several = Evaluate("--mistakes 3 -n " + ranks);
    for (const char* key : {"sample", "class", "predicted", "image"}) {
      for (int i : {0, 1, 2}) EXPECT_EQ(several["mistakes"][i][key], one["mistakes"][i][key]);
    }
    EXPECT_NEAR(several["loss"].get<double>(), one["loss"].get<double>(), 1e-6);
    for (const char* key : {"targets", "accuracy", "classes", "confusion"}) {
      EXPECT_EQ(several[key], one[key]) << key << " of " << ranks << " ranks";
    }
  }
  EXPECT_EQ(Evaluate("--split train")["targets"], 64);
  EXPECT_EQ(Evaluate("-n 3 --set train.evaluate_samples=10")["targets"], 10) << "and not 8 or 16";
}

TEST_F(Predict, EverySampleHasItsClasses) {
  EXPECT_EQ(Lines("").size(), 64u + 16u);
  const std::vector<std::string> lines = Lines("--split held_out --top 2 --outputs");
  ASSERT_EQ(lines.size(), 16u);
  for (const std::string& line : lines) {
    const Json sample = Json::parse(line);
    const auto outputs = sample["outputs"].get<std::vector<double>>();
    double sum = 0;
    for (const double output : outputs) sum += std::exp(output);
    const auto best = std::ranges::max_element(outputs);
    EXPECT_EQ(sample["class"], best - outputs.begin());
    EXPECT_NEAR(sample["probability"].get<double>(), std::exp(*best) / sum, 1e-6);
    EXPECT_EQ(sample["top"].size(), 2u);
  }
}

TEST_F(Predict, OtherFormatsSayTheSame) {
  const std::vector<std::string> csv = Lines("--split held_out --format csv");
  ASSERT_EQ(csv.size(), 1u + 16u);
  EXPECT_EQ(csv[0], "sample,class,probability");
  const Json first = Json::parse(Lines("--split held_out --outputs")[0]);
  EXPECT_THAT(csv[1], StartsWith("0," + first["class"].dump() + ","));
  Output(Run("predict m.safetensors --split held_out --format npy --out p.npy"));
  const std::string npy = Read("p.npy");
  EXPECT_THAT(npy, HasSubstr("'shape': (16, 4)"));
  ASSERT_EQ(npy.size(), 128u + 16u * 4u * sizeof(float));
  float value = 0;
  std::memcpy(&value, npy.data() + 128, sizeof value);
  EXPECT_EQ(value, first["outputs"][0].get<float>());
}

TEST_F(Predict, OtherDataIsABlockOrAPath) {
  const Outcome other =
      EngineProcess(folder_.path().native(),
                    {"predict", "m.safetensors", "--data",
                     "synthetic { samples: 5 eval_samples: 2 shape: 8 classes: 4 }"})
          .Wait();
  const std::string lines = Output(other);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 7);
  ExpectRefused({{"predict m.safetensors --data somewhere", 78, HasSubstr("is no single path")},
                 {"predict m.safetensors --format csv --outputs", 2, HasSubstr("of --format json")},
                 {"eval m.safetensors --set data.mnist.images=i --set data.mnist.labels=l", 66,
                  HasSubstr("--data 'mnist { ... }'")}});
  folder_.Write("t.csv", "x,c\n1,u\n2,v\n3,u\n4,v\n");
  Output(RunConfig("-q --set data.table.path=t.csv --set output.checkpoint=t.safetensors"));
  ExpectRefused({{"eval t.safetensors --data t.csv --split train", 2, HasSubstr("--split train")}});
}

TEST_F(Predict, RanksThatWouldEvaluateSomethingElseAreNamed) {
  const int port = FreePort();
  const auto first = Start("eval m.safetensors", TorchrunRank(0, 2, port));
  const auto second = Start("eval m.safetensors --split train", TorchrunRank(1, 2, port));
  EXPECT_THAT(Refusal(second->Wait(), 78), HasSubstr("rank 1 has '--split train'"));
  Refusal(first->Wait(), 78);
}

}  // namespace
}  // namespace engine::test
