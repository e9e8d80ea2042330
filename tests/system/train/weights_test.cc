// Weights that leave a run and come into another one, and models that other programs run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/system/train/run_test.h"
#include "tests/unit/data/idx_bytes.h"

namespace engine::test {
namespace {

using Weights = RunTest;

constexpr char kStill[] = "train.learning_rate.base=0";

std::string From(const std::string& path) {
  return "train.init_from=" + path;
}

// With a rate of 0 the weights that a run begins with are those that it evaluates at its end.
TEST_F(Weights, AreThoseOfTheRunThatLeftThem) {
  const Training first = Train(kMlp, {.ranks = 1}, "first");
  ASSERT_EQ(Engine({"export", "first", "--safetensors", "weights"}).exit_code, 0);
  const auto begins_with = [&](const std::string& file, const Members& members,
                               std::vector<std::string> more) {
    more.insert(more.end(), {kStill, "train.steps=3", From(folder_ / file)});
    return Train(kMlp, members, "second", more);
  };
  const Training second = begins_with("first", {.ranks = 1}, {});
  EXPECT_EQ(second.evaluations.back().loss, first.evaluations.back().loss);
  EXPECT_LT(second.losses[0], 0.9 * first.losses[0]);
  EXPECT_EQ(begins_with("weights", {.ranks = 1}, {}).losses, second.losses);
  for (const auto& [members, more] : std::vector<std::pair<Members, std::vector<std::string>>>{
           {{.ranks = 2}, {}},
           {{.ranks = 3}, {Sharded()}},
#ifdef ENGINE_TEST_ZMQ_PS
           {{.ranks = 2, .servers = 2}, {Plugins("zmq_ps", "priority_sched")}},
#endif
       }) {
    ExpectSameLosses(begins_with("first", members, more).losses, second.losses, kRounding, "ranks");
  }
}

TEST_F(Weights, AnotherHeadIsAllowedByName) {
  Train(kMlp, {.ranks = 1}, "first");
  const std::vector<std::string> other = {"data.synthetic.classes=7", From(folder_ / "first"),
                                          kStill, "train.steps=1"};
  const Training refused = TrainWithThreads(kMlp, {.ranks = 1}, other, /*expect_ok=*/false);
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.status.message(),
              AllOf(HasSubstr("2 parameters"), HasSubstr("linear3.bias (7) is (4) there"),
                    HasSubstr("linear3.weight (7, 16) is (4, 16) there")));
  std::vector<std::string> allowed = other;
  allowed.emplace_back("train.init_allow_missing=linear3.*");
  Train(kMlp, {.ranks = 1}, "second", allowed);
  auto first = Tensors("first"), second = Tensors("second");
  for (const char* name : {"linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"}) {
    EXPECT_EQ(second[name], first[name]) << name;
  }
  // New ones are those of the seed, near what they would be without any file.
  Train(kMlp, {.ranks = 1}, "new", {"data.synthetic.classes=7", kStill, "train.steps=1"});
  EXPECT_EQ(second["linear3.weight"], Tensors("new")["linear3.weight"]);
}

// A run that goes on has weights already.
TEST_F(Weights, DoNotCountForARunThatGoesOn) {
  const std::string init = From(folder_ / "first");
  Train(kMlp, {.ranks = 1}, "first", {"train.steps=5"});
  Train(kMlp, {.ranks = 1}, "second", {init});
  Train(kMlp, {.ranks = 1}, "part", {init, "train.steps=10"});
  std::filesystem::remove(folder_ / "first");
  GoOn(kMlp, 1, "part", {init});
  const Training missing = TrainWithThreads(kMlp, {.ranks = 1}, {init}, /*expect_ok=*/false);
  EXPECT_EQ(missing.exit_code, 66);
}

// The logits of a runtime are those of `engine predict`.
class Exported : public RunTest {
 protected:
  void SetUp() override {
    if (std::getenv("ENGINE_TEST_ONNXRUNTIME") == nullptr) {
      GTEST_SKIP() << "ENGINE_TEST_ONNXRUNTIME does not name a folder with the npm module "
                      "onnxruntime-web";
    }
  }
  void ExpectSameLogits(const std::string& model, const std::vector<std::string>& flags = {}) {
    SCOPED_TRACE(model);
    const auto succeeds = [this](std::vector<std::string> arguments) {
      const Outcome outcome = Engine(arguments);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    };
    succeeds({"run", folder_.Write("run.pbtxt", model), "--force"});
    std::vector<std::string> exported = {"export", "m.safetensors", "--onnx", "m.onnx"};
    exported.insert(exported.end(), flags.begin(), flags.end());
    succeeds(exported);
    succeeds({"predict", "m.safetensors", "--split", "held_out", "--format", "npy", "--out",
              "ours.npy"});
    const std::string command = "cd '" + folder_.path().native() + "' && node '" +
                                ENGINE_TEST_SOURCE_DIR
                                "/tests/system/train/run_onnx.mjs' m.onnx x.npy theirs.npy";
    ASSERT_EQ(std::system(command.c_str()), 0);
    const std::vector<float> ours = Floats("ours.npy"), theirs = Floats("theirs.npy");
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_NEAR(theirs[i], ours[i], 1e-5 * std::max(1.0f, std::abs(ours[i]))) << i;
    }
  }
  std::vector<float> Floats(const std::string& name) const {
    const std::string bytes = ReadWhole(folder_ / name);
    const size_t head =
        10 + static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]);
    return FloatsOf({bytes.begin() + static_cast<int64_t>(head), bytes.end()});
  }
  // The elements `values` as x.npy.
  template <typename T>
  void WriteInput(const std::string& shape, const char* type, const std::vector<T>& values) const {
    std::string header = std::string("{'descr': '") + type +
                         "', 'fortran_order': False, 'shape': (" + shape + "), }";
    header.resize(117, ' ');
    const std::string text = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n";
    folder_.Write("x.npy", text + std::string(reinterpret_cast<const char*>(values.data()),
                                              values.size() * sizeof(T)));
  }
};

// 12 images of 8 x 10 pixels, and 5 that are held out, as plugin mnist reads them.
TEST_F(Exported, AnImageNetAnswersAsHere) {
  std::vector<float> x;
  for (const auto& [name, count] : {std::pair{"train", 12u}, {"test", 5u}}) {
    std::string images = IdxHeader({count, 8, 10});
    x.clear();
    for (uint32_t i = 0; i < count * 80; ++i) {
      const auto value = static_cast<uint8_t>((i * i * 7 + i * 13) % 251);
      images += static_cast<char>(value);
      x.push_back((static_cast<float>(value) / 255 - 0.1307f) / 0.3081f);
    }
    folder_.Write(std::string(name) + ".idx", images);
    folder_.Write(std::string(name) + "-labels.idx", IdxLabels(count));
  }
  WriteInput("5, 1, 8, 10", "<f4", x);
  const std::string run =
      "data { mnist { images: \"train.idx\" labels: \"train-labels.idx\" eval_images: \"test.idx\" "
      "eval_labels: \"test-labels.idx\" } } output { checkpoint: \"m.safetensors\" }\n"
      "train { steps: 20 global_batch: 4 learning_rate { base: 0.02 } }\n"
      "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n";
  ExpectSameLogits("model { cnn { channels: [3, 4] } }\n" + run);
  ExpectSameLogits("model { resnet { blocks: [1, 1] width: 4 bottleneck: true } }\n" + run,
                   {"--fold"});
}

TEST_F(Exported, ALanguageModelAnswersAsHere) {
  // Of 400 bytes the last 40 are held out: four samples of 8, each with a byte to follow.
  std::vector<int32_t> x;
  const std::string gpt = Gpt();
  const std::string text = ReadWhole(folder_ / "text.txt");
  for (size_t i = 360; i < 392; ++i) x.push_back(static_cast<unsigned char>(text[i]));
  WriteInput("4, 8", "<i4", x);
  ExpectSameLogits(gpt + "output { checkpoint: \"m.safetensors\" }\n");
}

}  // namespace
}  // namespace engine::test
