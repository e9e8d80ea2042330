// Runs whose ranks update and that survive the loss of one, as processes.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/support/training.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

class Survival : public CliTest {
 protected:
  // The losses that the steps of a run wrote last.
  std::map<int64_t, double> Losses(const char* name) const {
    std::map<int64_t, double> losses;
    std::istringstream lines(Read(name));
    for (std::string line; std::getline(lines, line);) {
      const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!event.is_discarded() && event["event"] == "step") losses[event["step"]] = event["loss"];
    }
    return losses;
  }
  // Of a run in which nobody is lost, and of one in which ranks 0, 1, ... are killed in turn.
  void Train(const std::string& words, int kills) {
    const std::string all =
        "run run.pbtxt --set train.steps=120 --set model.mlp.hidden=384,384 --set "
        "sgd.momentum=0.9 " +
        words;
    Output(Run(all + " -q --set output.metrics=whole.jsonl"));
    auto process = Start(all + " --set output.metrics=run.jsonl");
    for (int kill_index = 0; kill_index < kills; ++kill_index) {
      AwaitSteps(StepsWritten() + 5);
      const std::vector<int> ranks = process->Children();
      kill(ranks.at(kill_index % ranks.size()), SIGKILL);
    }
    outcome_ = process->Wait();
    EXPECT_EQ(outcome_.exit_code, 0) << outcome_.err;
  }
  double LargestDifference() const {
    const std::map<int64_t, double> whole = Losses("whole.jsonl"), lossy = Losses("run.jsonl");
    EXPECT_EQ(whole.size(), 120u);
    EXPECT_GE(lossy.size() + 4, whole.size());  // one that rank 0 had not told when it was killed
    double largest = 0;
    for (const auto& [step, loss] : lossy)
      largest = std::max(largest, std::abs(loss - whole.at(step)));
    return largest;
  }

  Outcome outcome_;
};

TEST_F(Survival, RanksThatAreStartedAgainGoOnToTheBit) {
  Train("-n 3 --restarts 3", 3);
  EXPECT_EQ(LargestDifference(), 0);
  EXPECT_THAT(outcome_.err,
              AllOf(HasSubstr("started again (3 of 3)"), HasSubstr("all ranks go on")));
}

// Or later, if the machine is slow.
TEST_F(Survival, ARankThatIsLostBeforeTheFirstStepIsStartedAgain) {
  auto process = Start("run run.pbtxt -n 2 --restarts 1 --set model.mlp.hidden=2048,2048");
  const auto has_plugins = [&] {
    const std::vector<int> ranks = process->Children();
    return ranks.size() == 2 &&
           ReadWhole("/proc/" + std::to_string(ranks[0]) + "/maps").find("libengine_tcp") !=
               std::string::npos;
  };
  Await("plugins", has_plugins);
  kill(process->Children()[1], SIGKILL);
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("started again (1 of 1)"));
}

// Which steps do not change: the learning rate is lost beside the parameters.
TEST_F(Survival, RanksKeepWhatTheirHooksHaveKept) {
  const std::string words =
      "run run.pbtxt -n 3 --plugins topk --set train.steps=120 --set model.mlp.hidden=384,384 "
      "--set train.learning_rate.base=1e-30 --set output.checkpoint=";
  Output(Run(words + "whole -q"));
  auto process = Start(words + "model --restarts 2 --set output.metrics=run.jsonl");
  for (const size_t of_rank_one : {1u, 2u}) {  // the second time it is the youngest
    AwaitSteps(StepsWritten() + 5);
    kill(process->Children().at(of_rank_one), SIGKILL);
  }
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("started again (2 of 2)"),
                    HasSubstr("what hook 'topk' has kept on the rank that was lost is lost"),
                    Not(HasSubstr("the checkpoint has no"))));
  const auto whole = TensorsOf(folder_ / "whole"), model = TensorsOf(folder_ / "model");
  size_t residuals = 0, lost = 0;
  for (const auto& [name, bytes] : whole) {
    const bool of_lost = name.find("mean_residual/1/") != std::string::npos;
    residuals += name.find("mean_residual/") != std::string::npos ? 1 : 0;
    lost += model.at(name) != bytes ? 1 : 0;
    EXPECT_TRUE(of_lost || model.at(name) == bytes) << name;
  }
  EXPECT_EQ(residuals, 3 * 6u);
  EXPECT_GT(lost, 0u);
}

TEST_F(Survival, RanksOfALauncherLeaveAfterALossTooMany) {
  const int port = FreePort();
  const std::string words =
      "run run.pbtxt -q --min-ranks 2 --set train.steps=100000000 --set output.metrics=run.jsonl";
  auto first = Start(words, TorchrunRank(0, 2, port)),
       second = Start(words, TorchrunRank(1, 2, port));
  AwaitSteps(5);
  kill(second->pid(), SIGKILL);
  const std::string err = Refusal(first->Wait(), 200);
  EXPECT_THAT(err, HasSubstr("rank 1: its connection to rank 0 ended"));
  second->Wait();
}

TEST_F(Survival, FewerRanksKeepTheBatch) {
  Train("-n 3 --min-ranks 2", 1);
  EXPECT_LT(LargestDifference(), 1e-5);
  EXPECT_THAT(outcome_.err, HasSubstr("rank 0: its process (pid "));
  EXPECT_THAT(outcome_.err, HasSubstr("the run goes on without it"));
}

TEST_F(Survival, TheFirstLossBeyondTheRestartsEndsTheRun) {
  auto process = StartLongRun("-n 2 --restarts 1");
  kill(process->Children()[1], SIGKILL);
  AwaitSteps(StepsWritten() + 5);
  kill(process->Children()[1], SIGKILL);
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("started again (1 of 1)"), HasSubstr("rank 1: its process")));
}

// Parts of the states are lost with it.
TEST_F(Survival, ShardedStatesComeFromTheCheckpoint) {
  auto process = StartLongRun(
      "-n 2 --restarts 1 --set train.shard_optimizer=true --set "
      "output.checkpoint=model.safetensors "
      "--set train.checkpoint_every=10");
  Await("a checkpoint", [&] { return std::filesystem::exists(folder_ / "model.safetensors"); });
  kill(process->Children()[0], SIGKILL);
  AwaitSteps(StepsWritten() + 15);
  kill(-process->pid(), SIGINT);
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err, HasSubstr("all go back to model.safetensors"));
}

TEST_F(Survival, ACheckpointOfAnotherRunIsNoneToGoBackTo) {
  const std::string words =
      "--set train.shard_optimizer=true --set output.checkpoint=m.safetensors ";
  Output(RunConfig("-q " + words));
  auto process = StartLongRun("-n 2 --restarts 1 --force " + words);
  kill(process->Children()[1], SIGKILL);
  AwaitSteps(StepsWritten() + 15);
  kill(-process->pid(), SIGINT);
  const Outcome outcome = process->Wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err, HasSubstr("all go back to the beginning"));
}

}  // namespace
}  // namespace engine::test
