#include "app/run/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/support/temp_folder.h"

namespace engine::run {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::vector<Json> Lines(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream text(testing::ReadWhole(path));
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

class MetricsFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<MetricsFile> Open(MetricsFile::Earlier earlier = MetricsFile::Earlier::kReplace) {
    auto file = MetricsFile::Open(path_, earlier);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return std::move(*file);
  }

  const testing::TempFolder folder_;
  const std::string path_ = folder_ / "run.jsonl";
};

TEST_F(MetricsFileTest, OneObjectPerLine) {
  const auto file = Open();
  ASSERT_TRUE(file->Write(train::StepReport{.step = 3,
                                            .steps = 9,
                                            .epoch = 0.5,
                                            .loss = 1.25,
                                            .accuracy = 0.75,
                                            .learning_rate = 0.1,
                                            .samples = 8,
                                            .seconds = 2,
                                            .communication_seconds = 1})
                  .ok());
  ASSERT_TRUE(file->Write(train::EvaluationReport{
                              .step = 3, .loss = 2.5, .accuracy = 0.5, .targets = 16, .seconds = 4})
                  .ok());
  ASSERT_TRUE(file->WriteCheckpoint(3, "a \"quoted\" name\n").ok());
  ASSERT_TRUE(file->WritePluginMetric(1, "tcp.bytes", 1e9).ok());
  // Every line is there while the file is still open, as after a crash.
  EXPECT_EQ(Lines(path_),
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
                {{"event", "metric"}, {"rank", 1}, {"name", "tcp.bytes"}, {"value", 1e9}}}));
}

TEST_F(MetricsFileTest, TheFirstLineReplacesAnEarlierRun) {
  folder_.Write("run.jsonl", "earlier\nand longer than the new content\n");
  const auto file = Open();
  EXPECT_THAT(testing::ReadWhole(path_), HasSubstr("earlier"));
  ASSERT_TRUE(file->WriteCheckpoint(1, "a").ok());
  ASSERT_TRUE(file->WriteCheckpoint(2, "b").ok());
  EXPECT_EQ(Lines(path_).size(), 2u);
}

TEST_F(MetricsFileTest, ARunThatGoesOnAppends) {
  folder_.Write("run.jsonl", "{\"event\":\"earlier\"}\n");
  const auto file = Open(MetricsFile::Earlier::kKeep);
  ASSERT_TRUE(file->WriteCheckpoint(1, "a").ok());
  ASSERT_TRUE(file->WriteCheckpoint(2, "b").ok());
  const std::vector<Json> lines = Lines(path_);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["event"], "earlier");
}

TEST_F(MetricsFileTest, PluginsOfManyThreadsWriteWholeLines) {
  const auto file = Open();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < 100; ++i) {
        EXPECT_TRUE(file->WritePluginMetric(rank, "name", i).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Lines(path_).size(), 400u);
}

TEST_F(MetricsFileTest, SaysWhatCannotBeWritten) {
  const auto missing = MetricsFile::Open(folder_ / "none/run.jsonl");
  EXPECT_EQ(missing.status().code(), StatusCode::kStorage);
  EXPECT_THAT(missing.status().message(), HasSubstr("none/run.jsonl"));

  auto full = MetricsFile::Open("/dev/full");
  ASSERT_TRUE(full.ok()) << full.status().message();
  const Status status = (*full)->WriteCheckpoint(1, "a");
  EXPECT_EQ(status.code(), StatusCode::kStorage);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("/dev/full"), HasSubstr("No space left")));
}

}  // namespace
}  // namespace engine::run
