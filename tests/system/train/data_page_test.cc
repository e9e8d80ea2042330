// The configurations of docs/data.md, as they stand there, over small files of the names that it
// has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoint.h"
#include "tests/support/expect_status.h"
#include "tests/system/train/run_test.h"
#include "tests/unit/data/image_bytes.h"
#include "tests/unit/data/npy_bytes.h"

namespace engine::test {
namespace {

// Indented blocks that begin with "# NAME.pbtxt", by name.
std::map<std::string, std::string> ConfigurationsOfThePage() {
  std::istringstream page(ReadWhole(ENGINE_TEST_SOURCE_DIR "/docs/data.md"));
  std::map<std::string, std::string> found;
  std::string name;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("    ")) {
      name.clear();
    } else if (line.starts_with("    # ") && line.ends_with(".pbtxt")) {
      name = line.substr(6);
    } else if (!name.empty()) {
      found[name] += line + "\n";
    }
  }
  return found;
}

class DataPage : public RunTest {
 protected:
  // On one rank and on two, whose losses are the same but for rounding: what the program prints.
  void ExpectTrains(const std::string& name, const std::string& samples) {
    const auto pages = ConfigurationsOfThePage();
    ASSERT_TRUE(pages.contains(name)) << name;
    folder_.Write(name, pages.at(name));
    std::vector<double> one;
    for (const char* ranks : {"1", "2"}) {
      const std::string metrics = std::string("losses") + ranks;
      const Outcome run =
          Engine({"run", name, "--force", "-n", ranks, "--set", "train.steps=12", "--set",
                  "output.metrics=" + metrics, "--set", "cpu_ops.threads=1"});
      ASSERT_EQ(run.exit_code, 0) << run.err << run.out;
      EXPECT_THAT(run.err + run.out, HasSubstr(samples));
      const std::vector<double> losses = Losses(folder_ / metrics);
      ASSERT_EQ(losses.size(), 12u);
      if (one.empty()) one = losses;
      ExpectSameLosses(losses, one, 1e-4, name + " on " + ranks);
    }
  }

  static std::vector<double> Losses(const std::string& metrics) {
    std::istringstream lines(ReadWhole(metrics));
    std::vector<double> losses;
    for (std::string line; std::getline(lines, line);) {
      const auto event = nlohmann::json::parse(line);
      if (event["event"] == "step") losses.push_back(event["loss"]);
    }
    return losses;
  }
};

TEST_F(DataPage, AFolderOfPictures) {
  for (uint8_t i = 0; i < 40; ++i) {
    const std::string name = (i < 32 ? "pets/train/" : "pets/val/") +
                             std::string(i % 2 ? "dog/" : "cat/") + std::to_string(i);
    folder_.Write(name + ".jpg", JpegBytes(50 + i, 44, {i, static_cast<uint8_t>(i % 2 * 200), 7}));
    folder_.Write(name + ".PNG", PngBytes(30, 35 + i, PNG_COLOR_TYPE_GRAY, 8,
                                          std::vector<uint8_t>(30 * (35u + i), i)));
  }
  ExpectTrains("pets.pbtxt", "64 samples and 16 held out");
  const Outcome run = Engine({"run", "pets.pbtxt", "--force", "-n", "2", "--set", "train.steps=1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto checkpoint = ValueOf(checkpoint::OpenCheckpoint(folder_ / "pets.safetensors"));
  ASSERT_TRUE(checkpoint.info.class_names.contains("label"));
  EXPECT_THAT(checkpoint.info.class_names.at("label"), ElementsAre("cat", "dog"));
}

TEST_F(DataPage, Tables) {
  std::string flowers = "id,petal,place,species\n", houses = "area,price,rent,trust\n";
  for (int i = 0; i < 60; ++i) {
    const std::string number = std::to_string(i);
    flowers += number + "," + (i % 9 ? std::to_string(i % 5) + ".5" : "") +
               (i % 4 ? ",\"wood, dark\"," : ",meadow,") + (i % 3 ? "rose\n" : "iris\n");
    houses +=
        number + "," + std::to_string(3 * i) + ",0." + number + "," + (i % 2 ? "1" : "0.25") + "\n";
  }
  folder_.Write("flowers.csv", flowers);
  ExpectTrains("flowers.pbtxt", "table flowers.csv");
  folder_.Write("houses.csv", houses);
  ExpectTrains("houses.pbtxt", "table houses.csv");
}

TEST_F(DataPage, Arrays) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int i = 0; i < 100; ++i) {
    y.push_back(i % 10);
    for (int j = 0; j < 12; ++j) x.push_back(static_cast<float>((i * j) % 10) / 10);
  }
  folder_.Write("x.npy", NpyBytes("<f4", "(100, 3, 4)", x));
  folder_.Write("y.npy", NpyBytes("<i8", "(100,)", y));
  ExpectTrains("digits.pbtxt", "table x.npy");
}

TEST_F(DataPage, Tokens) {
  for (const char* name : {"corpus/train.bin", "corpus/val.bin"}) {
    std::string tokens;
    for (uint64_t i = 0; i < 6000; ++i) AppendLittle(tokens, i * i % 512, 2);
    folder_.Write(name, tokens);
  }
  ExpectTrains("corpus.pbtxt", "tokens corpus");
}

}  // namespace
}  // namespace engine::test
