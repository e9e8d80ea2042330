// Runs with servers of their own, as processes: the command line, and members that die or stop.
#include <signal.h>

#include <filesystem>

#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class Served : public CliTest {
 protected:
  static std::vector<std::string> Arguments(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"run", "run.pbtxt", "--plugins", "zmq_ps,priority_sched"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // A run that would not end by itself, in the middle of its training.
  std::unique_ptr<EngineProcess> StartLongRun(std::vector<std::string> more) {
    std::filesystem::remove(folder_ / "run.jsonl");
    more.insert(more.end(),
                {"-q", "--set", "train.steps=100000000", "--set", "output.metrics=run.jsonl"});
    auto process = std::make_unique<EngineProcess>(folder_.path().native(), Arguments(more));
    AwaitSteps(5);
    return process;
  }
  void AwaitSteps(int64_t steps) {
    Await("more steps", [&] { return StepsWritten() >= steps; });
  }
  int64_t StepsWritten() const {
    const std::string metrics = Read("run.jsonl");
    return std::count(metrics.begin(), metrics.end(), '\n');
  }
};

TEST_F(Served, TrainsWithServersOfTheirOwn) {
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{}, {"--threads"}, {"--set", "zmq_ps.encrypt=always"}}) {
    std::vector<std::string> arguments = {"-n", "2", "--servers", "2"};
    arguments.insert(arguments.end(), how.begin(), how.end());
    const Outcome outcome = Run(Arguments(arguments));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    EXPECT_THAT(outcome.out, HasSubstr("step"));
  }
}

TEST_F(Served, AKilledServerEndsTheRunAndIsNamedOnce) {
  for (const std::string update : {"sync", "async"}) {
    auto process = StartLongRun(
        {"-n", "2", "--servers", "2", "--set", std::string("zmq_ps.update=").append(update)});
    const std::vector<int> members = process->Children();
    ASSERT_EQ(members.size(), 4u);
    kill(members[3], SIGKILL);
    EXPECT_THAT(
        Refusal(process->Wait(), 137),
        MatchesRegex("engine: server 1: its process \\(pid [0-9]+\\) was killed by signal 9 .*\n"));
    EXPECT_TRUE(AwaitNoDescendants());
  }
}

TEST_F(Served, AKilledRankEndsARunThatWaitsForIt) {
  auto process = StartLongRun({"-n", "3", "--servers", "1"});
  kill(process->Children()[1], SIGKILL);
  EXPECT_THAT(
      Refusal(process->Wait(), 137),
      MatchesRegex("engine: rank 1: its process \\(pid [0-9]+\\) was killed by signal 9 .*\n"));
}

// Its server, and the parameters there, are lost with it.
TEST_F(Served, AKilledRankWithAServerInsideEndsAnAsynchronousRunToo) {
  auto process = StartLongRun({"-n", "2", "--set", "zmq_ps.update=async"});
  kill(process->Children()[1], SIGKILL);
  EXPECT_THAT(
      Refusal(process->Wait(), 137),
      MatchesRegex("engine: rank 1: its process \\(pid [0-9]+\\) was killed by signal 9 .*\n"));
}

TEST_F(Served, AStoppedServerIsNamed) {
  auto process =
      StartLongRun({"-n", "2", "--servers", "2", "--set", "zmq_ps.heartbeat_ms=100", "--set",
                    "zmq_ps.heartbeat_timeout_ms=600", "--set", "zmq_ps.lost_after_ms=500"});
  kill(process->Children()[2], SIGSTOP);
  EXPECT_THAT(Refusal(process->Wait(), 200), HasSubstr("server 0"));
}

TEST_F(Served, AnAsynchronousRunGoesOnWithoutADeadRank) {
  auto process = StartLongRun({"-n", "3", "--servers", "1", "--set", "zmq_ps.update=async"});
  kill(process->Children()[2], SIGKILL);
  AwaitSteps(StepsWritten() + 200);
  kill(-process->pid(), SIGINT);
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 2"), HasSubstr("goes on without it")));
}

TEST_F(Served, ALostRankIsReplaced) {
  auto process = StartLongRun(
      {"-n", "2", "--servers", "1", "--restarts", "1", "-v", "--set", "zmq_ps.update=async"});
  const std::vector<int> before = process->Children();
  ASSERT_EQ(before.size(), 3u);
  kill(before[1], SIGKILL);
  Await("the new process", [&] {
    const std::vector<int> now = process->Children();
    return now.size() == 3 && now != before;
  });
  AwaitSteps(StepsWritten() + 200);
  kill(-process->pid(), SIGINT);
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("started again (1 of 1)"), HasSubstr("in place of a rank")));
}

TEST_F(Served, FinishesWithWhoIsLeft) {
  auto process = std::make_unique<EngineProcess>(
      folder_.path().native(),
      Arguments({"-n", "3", "--servers", "1", "-q", "--set", "zmq_ps.update=async", "--set",
                 "train.steps=3000", "--set", "output.metrics=run.jsonl", "--set",
                 "output.checkpoint=model.safetensors"}));
  AwaitSteps(20);
  kill(process->Children()[1], SIGKILL);
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(Run({"eval", "model.safetensors"}).exit_code, 0);
}

TEST_F(Served, RefusesACommunicatorWithoutServers) {
  const Outcome outcome = Run({"run", "run.pbtxt", "-n", "2", "--servers", "1"});
  EXPECT_THAT(Refusal(outcome, 78), AllOf(HasSubstr("'tcp'"), HasSubstr("--servers")));
}

}  // namespace
}  // namespace engine::testing
