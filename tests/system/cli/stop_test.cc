// Runs that end before their time, by Ctrl-C; tests/system/train/kill_matrix_test.cc has the rest.

#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Stop = CliTest;

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

}  // namespace
}  // namespace engine::testing
