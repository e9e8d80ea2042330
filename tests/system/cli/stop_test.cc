// Runs that end before their time; tests/system/train/kill_matrix_test.cc has the rest.
#include <string>

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

using Stop = CliTest;

// Its end takes longer than the grace, in which the other rank fails of it.
TEST_F(Stop, TheCauseIsToldBeforeThePluginsEnd) {
  const Outcome outcome = RunConfig("-q -n 2 --plugin-path " ENGINE_TEST_FAULTY
                                    " --plugins faulty_hook --set faulty_hook.rank=1"
                                    " --set faulty_hook.mode=destructor.hang,BeginStep.data");
  EXPECT_THAT(Refusal(outcome, 65),
              AllOf(HasSubstr("rank 1: "), HasSubstr("the cable was pulled")));
}

TEST_F(Stop, CtrlCFinishesTheStepAndWritesACheckpoint) {
  for (const std::string ranks : {"-n 2", "-n 2 --threads", ""}) {
    std::filesystem::remove(folder_ / "model.safetensors");
    auto process = StartLongRun(ranks + " --set output.checkpoint=model.safetensors");
    kill(-process->pid(), SIGINT);  // as a terminal does: to the launcher and to every rank
    EXPECT_THAT(Refusal(process->Wait(), 130),
                AllOf(HasSubstr("stopped after step"), HasSubstr("on request")));
    EXPECT_TRUE(AwaitNoDescendants());
    // The step of the checkpoint is the last one of the metrics, whose last line is the checkpoint.
    EXPECT_THAT(Output(Run("eval model.safetensors")),
                HasSubstr("step " + std::to_string(StepsWritten() - 1) + "  "));
  }
}

// A terminal that goes, and Slurm's --signal=USR1@60.
TEST_F(Stop, HangUpAndUserSignalsDoTheSame) {
  for (const int signal : {SIGHUP, SIGUSR1}) {
    for (const std::string ranks : {"-n 2", "-n 2 --threads"}) {
      std::filesystem::remove(folder_ / "model.safetensors");
      auto process = StartLongRun(ranks + " --set output.checkpoint=model.safetensors");
      kill(process->pid(), signal);
      EXPECT_THAT(Refusal(process->Wait(), 128 + signal), HasSubstr("stopped after step"));
      EXPECT_TRUE(std::filesystem::exists(folder_ / "model.safetensors"));
    }
  }
}

}  // namespace
}  // namespace engine::test
