// Runs with servers of their own, as processes; tests/system/train/kill_matrix_test.cc has the members
// that die or stop while all wait for each other.

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

class Served : public CliTest {
 protected:
  // The end of member `index` of a run with `words`; the ranks are the first.
  std::unique_ptr<EngineProcess> StartAndKill(const std::string& words, size_t index) {
    auto process = StartLongRun("--plugins zmq_ps,priority_sched " + words);
    members_ = process->Children();
    kill(members_.at(index), SIGKILL);
    return process;
  }

  std::vector<int> members_;  // of the run before the signal
};

TEST_F(Served, TrainsWithServersOfTheirOwn) {
  for (const char* how : {"", "--threads", "--set zmq_ps.encrypt=always"}) {
    const Outcome outcome =
        RunConfig(std::string("--plugins zmq_ps,priority_sched -n 2 --servers 2 ") + how);
    EXPECT_THAT(Output(outcome), HasSubstr("step"));
    EXPECT_EQ(outcome.err, "");
  }
}

TEST_F(Served, AKilledServerEndsAnAsynchronousRunAndIsNamedOnce) {
  ExpectKilled(*StartAndKill("-n 2 --servers 2 --set zmq_ps.update=async", 3), "server 1");
}

// Its server, and the parameters there, are lost with it.
TEST_F(Served, AKilledRankWithAServerInsideEndsAnAsynchronousRunToo) {
  ExpectKilled(*StartAndKill("-n 2 --set zmq_ps.update=async", 1), "rank 1");
}

// The ranks end when their launcher is silent, and tell the server that they leave: that is no
// success of the run.
TEST_F(Served, AServerWhoseRunIsGoneSaysSo) {
  const std::string at = "127.0.0.1:" + std::to_string(FreePort());
  auto server = Start("serve " + at + " --index 0 -q");
  auto process = StartLongRun("--plugins zmq_ps,priority_sched -n 2 --servers 1 --serve-at " + at +
                              " --set communication.timeout_ms=1500");
  kill(process->pid(), SIGSTOP);
  EXPECT_THAT(Refusal(server->Wait(), 200), HasSubstr("lost the run at " + at));
  kill(process->pid(), SIGCONT);
  EXPECT_NE(process->Wait().exit_code, 0);
}

TEST_F(Served, ALostRankIsReplaced) {
  auto process = StartAndKill("-n 2 --servers 1 --restarts 1 -v --set zmq_ps.update=async", 1);
  Await("the new process", [&] {
    const std::vector<int> now = process->Children();
    return now.size() == 3 && now != members_;
  });
  AwaitSteps(StepsWritten() + 200);
  kill(-process->pid(), SIGINT);
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("started again (1 of 1)"), HasSubstr("in place of a rank")));
}

TEST_F(Served, AnAsynchronousRunFinishesWithoutADeadRank) {
  auto process = Start(
      "run run.pbtxt --plugins zmq_ps,priority_sched -n 3 --servers 1 -q --set zmq_ps.update=async "
      "--set train.steps=1000 --set output.metrics=run.jsonl "
      "--set output.checkpoint=model.safetensors");
  AwaitSteps(20);
  kill(process->Children()[1], SIGKILL);
  const Outcome outcome = process->Wait();
  Output(outcome);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1"), HasSubstr("goes on without it")));
  Output(Run("eval model.safetensors"));
}

}  // namespace
}  // namespace engine::test
