// Plugins inside of plugins: in a configuration, and in runs.
#include <gmock/gmock.h>

#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "tests/support/expect_status.h"
#include "tests/system/train/run_test.h"

namespace engine::test {
namespace {

using Moved = std::multiset<std::pair<int64_t, int64_t>>;  // bucket and bytes

class InnerTest : public RunTest {
 protected:
  static std::vector<std::string> With(const std::string& communicator,
                                       std::vector<std::string> more = {},
                                       const std::string& scheduler = "priority_sched") {
    more.push_back(Plugins(communicator, scheduler));
    more.push_back("plugin_path=" ENGINE_TEST_FIXTURES);
    return more;
  }
  std::vector<std::string> Recorded(const std::string& inner) const {
    return With("record", {"record.inner=" + inner, "record.file=" + (folder_ / "r.jsonl")});
  }
  static Result<config::Config> Load(const std::string& text,
                                     const std::vector<std::string>& overrides) {
    return config::Config::Load({.text = std::string(kMlp) + text,
                                 .origin = "run.pbtxt",
                                 .overrides = overrides,
                                 .plugin_folders = {ENGINE_TEST_PLUGIN_DIR}});
  }
  // The first line of what refuses a configuration.
  static std::string Refusal(const std::string& text, const std::vector<std::string>& overrides) {
    const std::string message = Load(text, overrides).status().message();
    return message.substr(0, message.find('\n'));
  }
  nlohmann::json Lines(int rank) const {
    std::ifstream file(folder_ / ("r.rank" + std::to_string(rank) + ".jsonl"));
    nlohmann::json lines = nlohmann::json::array();
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
};

TEST_F(InnerTest, RecordedRunsTrainToTheSameBits) {
  for (const std::string inner : {"tcp", "shm", "null"}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(inner + ", " + std::to_string(ranks) + " ranks");
      Train(kMlp, {ranks}, "bare", With(inner));
      Train(kMlp, {ranks}, "recorded", Recorded(inner));
      EXPECT_EQ(Tensors("recorded"), Tensors("bare"));
    }
  }
}

TEST_F(InnerTest, WhatIsRecordedIsWhatTheTraceHas) {
  auto recorded = Recorded("tcp");
  recorded.push_back("output.trace=" + (folder_ / "run.json"));
  Train(kMlp, {2}, "recorded", recorded);
  std::ifstream file(folder_ / "run.json");
  const auto trace = nlohmann::json::parse(file);
  for (int rank = 0; rank < 2; ++rank) {
    Moved traced, written;
    for (const auto& event : trace["traceEvents"]) {
      const bool is_transfer = event["ph"] == "X" && event["pid"] == rank + 1 &&
                               !std::string(event["name"]).starts_with("queue: ") &&
                               event["args"].contains("transfer") &&
                               event["args"].contains("bucket");
      if (is_transfer) traced.emplace(event["args"]["bucket"], event["args"]["bytes"]);
    }
    for (const auto& line : Lines(rank)) {
      EXPECT_EQ(line["status"], 0);
      EXPECT_LE(line["submitted_ns"], line["done_ns"]);
      EXPECT_LE(line["started_ns"], line["done_ns"]);
      if (line["bucket"] >= 0) written.emplace(line["bucket"], line["bytes"]);
    }
    EXPECT_GE(written.size(), 20u);
    EXPECT_EQ(written, traced);
  }
}

// A sum of pairs has other roundings than that of all.
TEST_F(InnerTest, HostsOfTwoRanksTrainAsAllDoFlat) {
  for (const int ranks : {4, 3}) {
    const Training flat = Train(kMlp, {ranks}, "flat", With("shm"));
    const auto expect_same = [&](const std::string& what, const std::vector<std::string>& with) {
      ExpectSameRun(Train(kMlp, {ranks}, "run", with), flat, kRounding, what);
      ExpectNearTensors("run", "flat");
    };
    const std::string pairs = "hier.ranks_per_host=2";
    expect_same("all-reduce", With("hier", {pairs}));
    expect_same("reduce-scatter and all-gather", With("hier", {pairs, Sharded()}));
    // Two plugins deep; a host for each rank, and one for all.
    expect_same("by size", With("by_size", {pairs, "by_size.second=hier",
                                            "by_size.table=all_reduce 1KiB hier"}));
    for (const char* group : {"1", "4"}) {
      expect_same(group, With("record", {"record.inner=hier", "hier.inner=tcp",
                                         "record.file=" + (folder_ / "r.jsonl"),
                                         std::string("hier.ranks_per_host=") + group}));
    }
  }
}

TEST_F(InnerTest, AnInnerSchedulerHasTheOptionsOfItsBlockUnlessTheOuterOneSetsThem) {
  Train(kMlp, {2}, "fifo", With("tcp", {}, "fifo_sched"));
  for (const std::string sets : {"fifo_sched.slice_bytes=512", "reverse_sched.slice_bytes=512"}) {
    auto more = Recorded("tcp");
    more.insert(more.end(),
                {"fifo_sched.slice_bytes=256", sets, Plugins("record", "reverse_sched")});
    Train(kMlp, {2}, "reversed", more);
    EXPECT_EQ(Tensors("reversed"), Tensors("fifo"));
    int64_t largest = 0;
    for (const auto& line : Lines(0)) {
      if (line["bucket"] < 0) continue;
      largest = std::max<int64_t>(largest, line["bytes"]);
      EXPECT_GT(line["priority"], 500) << "turned round";
    }
    EXPECT_EQ(largest, 512) << sets;
  }
}

TEST_F(InnerTest, ABlockOfAnInnerPluginIsOneOfTheRun) {
  const auto with = With("record", {"hier.ranks_per_host=3"});
  const auto config = ValueOf(Load("tcp {\n io_threads: 3 }\nshm { spin_us: 7 }", with));
  EXPECT_THAT(config.Print(true),
              AllOf(HasSubstr("io_threads: 3                           # run.pbtxt:9\n"),
                    HasSubstr("congestion_control: \"\""), HasSubstr("# run.pbtxt:10, not used")));
  EXPECT_THAT(config.plugins().versions, HasSubstr("\ntcp 1.0.0, file "));
}

TEST_F(InnerTest, AnInnerPluginThatCannotBeIsRefusedBeforeAnyIsMade) {
  const auto refusal = [&](const std::string& option, const std::string& text = "") {
    return Refusal(text, With("record", {option}));
  };
  EXPECT_THAT(refusal("record.inner=tpc"),
              AllOf(HasSubstr("--set record.inner=tpc: 'record.inner': plugin 'tpc' was not found"),
                    EndsWith("; did you mean 'tcp'?")));
  EXPECT_THAT(refusal("seed=3", "record {\n  inner: \"fifo_sched\" }"),
              EndsWith("run.pbtxt:9:3: 'record.inner': 'fifo_sched' is no name of a communicator"));
  EXPECT_THAT(refusal("record.inner=mlp"), EndsWith("'mlp' is no name of a communicator"));
  EXPECT_THAT(refusal("record.inner=./libengine_tcp.so"), EndsWith("is no name of a communicator"));
  EXPECT_THAT(refusal("record.inner=record"), HasSubstr("would be inside of itself"));
  EXPECT_THAT(Refusal("", With("record", {"record.inner=hier", "hier.outer=record"})),
              EndsWith("'record' would be inside of itself: record > hier"));
  EXPECT_EQ(refusal("tcp.io_threads=99"),
            "--set tcp.io_threads=99: 'io_threads': 99 is outside 1 .. 16");
  EXPECT_THAT(refusal("tcp.io_thread=2"), EndsWith("did you mean 'io_threads'?"));
}

TEST_F(InnerTest, ErrorsInsideNameTheWay) {
  const auto error = [&](const std::vector<std::string>& more, int code) {
    const Training run = TrainWithThreads(kMlp, {.ranks = 2}, more, /*expect_ok=*/false);
    EXPECT_EQ(run.exit_code, code);
    return std::string(run.status.message());
  };
  EXPECT_THAT(error(With("record", {"tcp.key_file=/no/such"}), 66),
              HasSubstr("plugin 'record': plugin 'tcp': no key in the file '/no/such'"));
  EXPECT_THAT(error(With("record", {"record.file=/no/such/r.jsonl"}), 203),
              HasSubstr("plugin 'record': cannot write '/no/such/r.rank"));
  const auto scheduler = [&](const std::string& more) {
    return error(With("tcp", {more, "reverse_sched.slice_bytes=2000000000"}, "reverse_sched"), 78);
  };
  EXPECT_THAT(scheduler("reverse_sched.inner=sequential_sched"),
              HasSubstr("plugin 'sequential_sched' has no option 'slice_bytes'"));
  EXPECT_THAT(scheduler("seed=3"),
              HasSubstr("plugin 'reverse_sched': plugin 'fifo_sched', slice_bytes: 2000000000 is "
                        "outside 0 .. 1073741824"));
}

}  // namespace
}  // namespace engine::test
