// Comparisons of whole runs, with runs that take milliseconds.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

using ::testing::AnyOf;

constexpr char kTrain[] = "bench train run.pbtxt -n 2 --warmup 2 --steps ";
const std::string kShort = std::string(kTrain) + "8 --blocks 1 --quiet ";

class BenchTrain : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    std::filesystem::create_directory(folder_ / "tmp");
  }
  // Everything that is needed while it runs lies below tmp/, and nothing of it stays.
  void TearDown() override {
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "tmp"));
    CliTest::TearDown();
  }

  Outcome Bench(const std::string& words) const {
    return Run(words, {{"TMPDIR", folder_ / "tmp"}});
  }
};

TEST_F(BenchTrain, WritesAllItsReports) {
  const Outcome outcome = Bench(std::string(kTrain) +
                                "8 --a tcp,fifo_sched --b tcp,priority_sched --blocks 1 "
                                "--baseline-null --out out");
  EXPECT_THAT(Output(outcome), AllOf(HasSubstr("equal at every step of every run"),
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
  const auto json = nlohmann::json::parse(Output(
      Bench(kShort + "--servers 2 --a zmq_ps,fifo_sched --b zmq_ps,priority_sched --format json")));
  EXPECT_EQ(json["request"]["servers"], 2);
  EXPECT_EQ(json["runs"].size(), 4u);
}
#endif

TEST_F(BenchTrain, AControlComparesAWithItself) {
  const Outcome outcome = Bench(std::string(kTrain) + "8 --blocks 2 --quiet --aa --format json");
  const auto json = nlohmann::json::parse(Output(outcome));
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(json["request"]["a_against_itself"], true);
  EXPECT_THAT(json["conclusion"].get<std::string>(),
              AnyOf(HasSubstr("would not have been seen"), HasSubstr("control failed")));
}

TEST_F(BenchTrain, GivesNoConclusionOnDifferentLosses) {
  const Outcome outcome = Bench(kShort + "--b-set train.learning_rate.base=0.1");
  EXPECT_EQ(outcome.exit_code, 65);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("no conclusion: A and B do not compute the same thing"),
                                 HasSubstr("in run 1 (A)"), HasSubstr("in run 2 (B)")));
  EXPECT_THAT(outcome.out, HasSubstr("differ at step"));
}

TEST_F(BenchTrain, TrainsUntilTheLossIsReached) {
  const auto json = nlohmann::json::parse(
      Output(Bench("bench train run.pbtxt -n 2 --blocks 1 --quiet --format json "
                   "--b-set train.learning_rate.base=0.1 --target-loss 1.2 --steps 900000")));
  for (const auto& run : json["runs"]) {
    EXPECT_GE(run["losses"].size(), 20u);
    EXPECT_LT(run["losses"].size(), 900000u);
    EXPECT_GT(run["target_seconds"], 0);
  }
  EXPECT_EQ(json["runs"][1]["seed"], 3);
  EXPECT_EQ(json["runs"][2]["seed"], 4);
}

TEST_F(BenchTrain, RefusesWhatCannotBeCompared) {
  const std::vector<Mistake> mistakes = {
      {"8 --b no_such", 79, AllOf(HasSubstr("side B"), HasSubstr("no_such"))},
      {"8 --b-set train.steppes=1", 78, AllOf(HasSubstr("side B"), HasSubstr("steppes"))},
      {"8 --b priority_sched --out run.pbtxt/out", 203, HasSubstr("run.pbtxt/out")},
      {"8", 2, HasSubstr("A and B are the same")},
      {"8 --aa --b fifo_sched", 2, HasSubstr("--aa")},
      {"8 --b fifo_sched --profile x", 2, HasSubstr("--profile")},
      {"8 --quiet --b-set data.mnist.images=nothing --b-set data.mnist.labels=nothing", 66,
       AllOf(HasSubstr("a run of B failed"), HasSubstr("nothing"))},
      {"900000 --quiet --b priority_sched --timeout 0.5", 202, HasSubstr("not done within")},
  };
  for (const auto& [steps, exit_code, sentence] : mistakes) {
    EXPECT_THAT(Refusal(Bench(kTrain + steps), exit_code), sentence) << steps;
  }
}

TEST_F(BenchTrain, RanksMayComeFromALauncher) {
  const int port = FreePort();
  const auto start = [&](int rank) {
    auto environment = TorchrunRank(rank, 2, port);
    environment["TMPDIR"] = folder_ / "tmp";
    return Start(
        "bench train run.pbtxt --warmup 2 --steps 8 --blocks 1 -q --b priority_sched --out out",
        environment);
  };
  const auto first = start(0), second = start(1);
  EXPECT_THAT(Output(first->Wait()),
              AllOf(HasSubstr("ranks                                     2\n"),
                    HasSubstr("equal at every step of every run"), HasSubstr("report: out/")));
  EXPECT_EQ(Output(second->Wait()), "");
}

TEST_F(BenchTrain, ASignalLeavesNothingBehind) {
  for (const int signal : {SIGINT, SIGTERM}) {
    auto process =
        Start(std::string(kTrain) + "900000 --b priority_sched", {{"TMPDIR", folder_ / "tmp"}});
    // The bench, the launcher of a run, its ranks.
    Await("a run", [&] {
      for (const int child : process->Children()) {
        const std::string pid = std::to_string(child);
        if (ReadWhole("/proc/" + pid + "/task/" + pid + "/children").find(' ') !=
            std::string::npos) {
          return true;
        }
      }
      return false;
    });
    kill(process->pid(), signal);
    const Outcome outcome = process->Wait();
    EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("stopped on request"));
  }
}

}  // namespace
}  // namespace engine::test
