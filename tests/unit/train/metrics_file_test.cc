#include "app/run/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"

namespace engine::run {
namespace {

using Json = nlohmann::json;

std::vector<Json> Lines(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream text(test::ReadWhole(path));
  for (std::string line; std::getline(text, line);) {
    lines.push_back(Json::parse(line));
    if (lines.back()["event"] != "step") continue;
    EXPECT_GT(lines.back()["peak_memory_bytes"], 1000000);  // of this process
    lines.back().erase("peak_memory_bytes");
  }
  return lines;
}

class MetricsFileTest : public ::testing::Test {
 protected:
  const test::TempFolder folder_;
  const std::string path_ = folder_ / "run.jsonl";
};

TEST_F(MetricsFileTest, OneObjectPerLine) {
  MetricsFile file(path_);
  const train::StepReport step{.step = 3,
                               .steps = 9,
                               .epoch = 0.5,
                               .loss = 1.25,
                               .accuracy = 0.75,
                               .learning_rate = 0.1,
                               .samples = 8,
                               .seconds = 2,
                               .communication_seconds = 1};
  ASSERT_THAT(file.Write(step), IsOk());
  const train::EvaluationReport evaluation{
      .step = 3, .loss = 2.5, .targets = 16, .metrics = {{"accuracy", 0.5}}, .seconds = 4};
  ASSERT_THAT(file.Write(evaluation), IsOk());
  ASSERT_THAT(file.WriteCheckpoint(3, "a \"quoted\" name\n"), IsOk());
  ASSERT_THAT(file.WritePluginMetric(3, 1, "tcp.bytes", 1e9), IsOk());
  // Every line is there while the file is still open, as after a crash.
  EXPECT_EQ(
      Lines(path_),
      (std::vector<Json>{
          {{"event", "step"},
           {"step", 3},
           {"epoch", 0.5},
           {"loss", 1.25},
           {"accuracy", 0.75},
           {"learning_rate", 0.1},
           {"samples", 8},
           {"seconds", 2.0},
           {"communication_seconds", 1.0}},
          {{"event", "evaluation"},
           {"step", 3},
           {"loss", 2.5},
           {"accuracy", 0.5},
           {"targets", 16},
           {"seconds", 4.0}},
          {{"event", "checkpoint"}, {"step", 3}, {"path", "a \"quoted\" name\n"}},
          {{"event", "metric"}, {"step", 3}, {"rank", 1}, {"name", "tcp.bytes"}, {"value", 1e9}}}));
}

TEST_F(MetricsFileTest, TheFirstLineReplacesAnEarlierRunOrIsAppendedToIt) {
  const std::string earlier = "{\"event\":\"earlier, and longer than what comes\"}\n";
  for (const auto keep : {MetricsFile::Earlier::kReplace, MetricsFile::Earlier::kKeep}) {
    folder_.Write("run.jsonl", earlier);
    MetricsFile file(path_, keep);
    EXPECT_EQ(test::ReadWhole(path_), earlier);
    ASSERT_THAT(file.WriteCheckpoint(1, "a"), IsOk());
    ASSERT_THAT(file.WriteCheckpoint(2, "b"), IsOk());
    EXPECT_EQ(Lines(path_).size(), keep == MetricsFile::Earlier::kKeep ? 3u : 2u);
    EXPECT_EQ(test::ReadWhole(path_).starts_with(earlier), keep == MetricsFile::Earlier::kKeep);
  }
}

TEST_F(MetricsFileTest, PluginsOfManyThreadsWriteWholeLines) {
  MetricsFile file(path_);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < 100; ++i) EXPECT_TRUE(file.WritePluginMetric(0, rank, "name", i).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Lines(path_).size(), 400u);
}

TEST_F(MetricsFileTest, SaysWhatCannotBeWritten) {
  MetricsFile nowhere(folder_ / "none/run.jsonl"), full("/dev/full");
  EXPECT_THAT(nowhere.WriteCheckpoint(1, "a"),
              FailsWith(StatusCode::kStorage, HasSubstr("none/run.jsonl")));
  EXPECT_THAT(
      full.WriteCheckpoint(1, "a"),
      FailsWith(StatusCode::kStorage, AllOf(HasSubstr("/dev/full"), HasSubstr("No space left"))));
}

}  // namespace
}  // namespace engine::run
