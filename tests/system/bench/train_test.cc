// Comparisons of whole runs, with runs that take milliseconds.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BenchTrain : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    std::filesystem::create_directory(folder_ / "tmp");
  }
  // Everything that is needed while it runs lies below tmp/, and nothing of it stays.
  void TearDown() override {
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "tmp")) {
      left.push_back(entry.path().native());
    }
    EXPECT_THAT(left, IsEmpty());
    CliTest::TearDown();
  }

  std::unique_ptr<EngineProcess> Start(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"bench", "train",    "run.pbtxt", "-n",
                                          "2",     "--warmup", "2"};
    if (std::find(more.begin(), more.end(), "--steps") == more.end()) {
      arguments.insert(arguments.end(), {"--steps", "8"});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<EngineProcess>(
        folder_.path().native(), arguments,
        std::map<std::string, std::string>{{"TMPDIR", folder_ / "tmp"}});
  }
  Outcome Bench(const std::vector<std::string>& more) const { return Start(more)->Wait(); }
};

TEST_F(BenchTrain, WritesAllItsReports) {
  const Outcome outcome = Bench({"--a", "tcp,fifo_sched", "--b", "tcp,priority_sched", "--blocks",
                                 "1", "--baseline-null", "--out", "out"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("equal at every step of every run"),
                                 HasSubstr("computation F + B"), HasSubstr("not separable")));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 5) << outcome.err;

  const auto json = nlohmann::json::parse(Read("out/results.json"));
  std::string order;
  for (const auto& run : json["runs"]) {
    order += run["side"].get<std::string>()[0];
    EXPECT_EQ(run["step_seconds"].size(), 8u);
    EXPECT_EQ(run["losses"].size(), 10u);
    for (const double seconds : run["step_seconds"]) EXPECT_GT(seconds, 0);
    EXPECT_GT(run["bytes_per_step"], 0);
  }
  EXPECT_EQ(order, "ABBAn");
  EXPECT_THAT(json["machine"]["command"].get<std::string>(), HasSubstr("--b tcp,priority_sched"));
  const std::string csv = Read("out/results.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 5 * 8);
  EXPECT_THAT(Read("out/report.html"), HasSubstr("<!doctype html>"));
}

#ifdef ENGINE_TEST_ZMQ_PS
TEST_F(BenchTrain, BothSidesHaveServers) {
  const Outcome outcome =
      Bench({"--servers", "2", "--a", "zmq_ps,fifo_sched", "--b", "zmq_ps,priority_sched",
             "--blocks", "1", "--quiet", "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["request"]["servers"], 2);
  EXPECT_EQ(json["runs"].size(), 4u);
}
#endif

TEST_F(BenchTrain, AControlComparesAWithItself) {
  const Outcome outcome = Bench({"--aa", "--blocks", "1", "--quiet", "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["request"]["a_against_itself"], true);
  EXPECT_THAT(json["conclusion"].get<std::string>(), HasSubstr("control passed"));
}

TEST_F(BenchTrain, GivesNoConclusionOnDifferentLosses) {
  const Outcome outcome =
      Bench({"--b-set", "train.learning_rate.base=0.1", "--blocks", "1", "--quiet"});
  EXPECT_EQ(outcome.exit_code, 65);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("no conclusion: A and B do not compute the same thing"),
                                 HasSubstr("in run 1 (A)"), HasSubstr("in run 2 (B)")));
  EXPECT_THAT(outcome.out, HasSubstr("differ at step"));
}

TEST_F(BenchTrain, RefusesBeforeItRunsAnything) {
  EXPECT_THAT(Refusal(Bench({"--b", "no_such"}), 79),
              AllOf(HasSubstr("side B"), HasSubstr("no_such")));
  EXPECT_THAT(Refusal(Bench({"--b-set", "train.steppes=1"}), 78),
              AllOf(HasSubstr("side B"), HasSubstr("steppes")));
  EXPECT_THAT(Refusal(Bench({"--b", "priority_sched", "--out", "run.pbtxt/out"}), 203),
              HasSubstr("run.pbtxt/out"));
  EXPECT_THAT(Refusal(Bench({}), 2), HasSubstr("A and B are the same"));
  EXPECT_THAT(Refusal(Bench({"--aa", "--b", "fifo_sched"}), 2), HasSubstr("--aa"));
  EXPECT_THAT(Refusal(Bench({"--b", "fifo_sched", "--profile", "x"}), 2), HasSubstr("--profile"));
}

TEST_F(BenchTrain, AFailingRunIsNamed) {
  const Outcome outcome = Bench(
      {"--b-set", "data.mnist.images=nothing", "--b-set", "data.mnist.labels=nothing", "--quiet"});
  EXPECT_THAT(Refusal(outcome, 66), AllOf(HasSubstr("a run of B failed"), HasSubstr("nothing")));
}

TEST_F(BenchTrain, ARunThatDoesNotEndIsStopped) {
  const Outcome outcome =
      Bench({"--b", "priority_sched", "--steps", "900000", "--timeout", "0.5", "--quiet"});
  EXPECT_THAT(Refusal(outcome, 202), HasSubstr("not done within"));
}

TEST_F(BenchTrain, CtrlCLeavesNothingBehind) {
  auto process = Start({"--b", "priority_sched", "--steps", "900000"});
  // The bench, the launcher of a run, its ranks.
  Await("a run", [&] {
    for (const int child : process->Children()) {
      const std::string pid = std::to_string(child);
      if (ReadWhole("/proc/" + pid + "/task/" + pid + "/children").find(' ') != std::string::npos) {
        return true;
      }
    }
    return false;
  });
  kill(process->pid(), SIGINT);
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("SIGINT"));
}

}  // namespace
}  // namespace engine::testing
