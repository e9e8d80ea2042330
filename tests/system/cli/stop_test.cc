// Runs that end before their time: a killed rank, Ctrl-C.

#include <signal.h>

#include <chrono>
#include <filesystem>

#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class Stop : public CliTest {
 protected:
  // A run that would not end by itself, in the middle of its training.
  std::unique_ptr<EngineProcess> StartLongRun(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"run",
                                          "run.pbtxt",
                                          "-q",
                                          "--set",
                                          "train.steps=100000000",
                                          "--set",
                                          "output.metrics=run.jsonl",
                                          "--set",
                                          "output.checkpoint=model.safetensors"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto process = std::make_unique<EngineProcess>(folder_.path().native(), arguments);
    Await("the first steps", [&] { return StepsWritten() >= 5; });
    return process;
  }
  int64_t StepsWritten() const {
    const std::string metrics = Read("run.jsonl");
    return std::count(metrics.begin(), metrics.end(), '\n');
  }
};

TEST_F(Stop, AKilledRankEndsAllAndIsNamedOnce) {
  folder_.Write("model.safetensors", "an earlier model");
  auto process = StartLongRun({"-n", "3"});
  const std::vector<int> ranks = process->Children();
  ASSERT_EQ(ranks.size(), 3u);
  const auto begin = std::chrono::steady_clock::now();
  kill(ranks[1], SIGKILL);
  const Outcome outcome = process->Wait();
  const auto duration = std::chrono::steady_clock::now() - begin;
  EXPECT_THAT(
      Refusal(outcome, 137),
      MatchesRegex("engine: rank 1: its process \\(pid [0-9]+\\) was killed by signal 9 .*\n"));
  EXPECT_TRUE(AwaitNoDescendants());
  // The contract says 2 s; the rest is for a busy machine.
  EXPECT_LT(duration, std::chrono::seconds(10));
  EXPECT_EQ(Read("model.safetensors"), "an earlier model");
}

TEST_F(Stop, CtrlCFinishesTheStepAndWritesACheckpoint) {
  for (const std::vector<std::string>& ranks :
       {std::vector<std::string>{"-n", "2"}, {"-n", "2", "--threads"}, {}}) {
    std::filesystem::remove(folder_ / "run.jsonl");
    std::filesystem::remove(folder_ / "model.safetensors");
    auto process = StartLongRun(ranks);
    kill(-process->pid(), SIGINT);  // as a terminal does: to the launcher and to every rank
    const Outcome outcome = process->Wait();
    EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("stopped after step"), HasSubstr("on request")));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(AwaitNoDescendants());

    const Outcome evaluation = Run({"eval", "model.safetensors"});
    EXPECT_EQ(evaluation.exit_code, 0) << evaluation.err;
    // The step of the checkpoint is the last one of the metrics, whose last line is the checkpoint.
    EXPECT_THAT(evaluation.out, HasSubstr("step " + std::to_string(StepsWritten() - 1) + "  "));
  }
}

}  // namespace
}  // namespace engine::testing
