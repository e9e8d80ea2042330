// Runs that end before their time: a killed rank, Ctrl-C.

#include <chrono>

#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Stop = CliTest;

TEST_F(Stop, AKilledRankEndsAllAndIsNamedOnce) {
  folder_.Write("model.safetensors", "an earlier model");
  auto process = StartLongRun("-n 3 --set output.checkpoint=model.safetensors");
  const std::vector<int> ranks = process->Children();
  ASSERT_EQ(ranks.size(), 3u);
  const auto begin = std::chrono::steady_clock::now();
  kill(ranks[1], SIGKILL);
  ExpectKilled(*process, "rank 1");
  // The contract says 2 s; the rest is for a busy machine.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(Read("model.safetensors"), "an earlier model");
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

}  // namespace
}  // namespace engine::testing
