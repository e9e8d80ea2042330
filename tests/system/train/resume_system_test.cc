// A run that was interrupted and goes on is the run that was not interrupted.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/system/train/run_test.h"

namespace engine::test {
namespace {

using Resume = RunTest;

const std::string kMeanNorm =
    Plugins("tcp", "priority_sched", "sgd", "," ENGINE_TEST_FIXTURES "/libengine_mean_norm.so");

TEST_F(Resume, TwentyStepsAreTenAndTenMoreToTheBit) {
  const std::pair<int, std::vector<std::string>> cases[] = {
      {1, {}},
      {2, {}},
      {2, {Sharded()}},
      {3, {Sharded()}},
      {2, {"train.micro_batches=2", "train.loss_scale=64"}},
      {1, {"sgd.momentum=0"}},
  };
  for (const std::string& config : {std::string(kMlp), Gpt(), Gpt("tied: false")}) {
    for (const auto& [ranks, more] : cases) ExpectGoesOnToTheBit(config, ranks, more);
  }
}

// Each has another folder of that name: rank 0 gets the shards and writes alone.
TEST_F(Resume, RanksThatDoNotSeeTheFilesOfRankZeroLeaveThemToIt) {
  folder_.Write("run.pbtxt", kMlp);
  const auto run = [this](const std::string& checkpoint) {
    return RunInTwoFolders(folder_, {"run", folder_ / "run.pbtxt", "--set", Sharded(), "--set",
                                     "output.checkpoint=" + checkpoint});
  };
  const std::string sentence = "not all ranks see the files of rank 0: it writes checkpoints alone";
  EXPECT_THAT(run(folder_ / "whole").err, Not(HasSubstr(sentence)));
  const Outcome apart = run("/proc/self/cwd/m");
  EXPECT_EQ(apart.exit_code, 0);
  EXPECT_THAT(apart.err, HasSubstr(sentence));
  EXPECT_EQ(Tensors("0/m"), Tensors("whole"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "1/m"));
}

// Each rank has the norms of its own gradients. Of version 0 the hook forgets.
TEST_F(Resume, WhatAHookRemembersGoesOnToTheBit) {
  for (const int ranks : {1, 2, 3}) {
    const auto tensors = ExpectGoesOnToTheBit(kMlp, ranks, {kMeanNorm});
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(tensors.contains("saved/hook/mean_norm/" + std::to_string(rank)), rank < ranks);
    }
  }
  const Training refused =
      TrainWithThreads(kMlp, {.ranks = 2, .resume = folder_ / "part"},
                       {kMeanNorm, "mean_norm.version=2", "train.steps=30"}, /*expect_ok=*/false);
  EXPECT_EQ(refused.exit_code, 65);
  EXPECT_THAT(refused.status.message(),
              HasSubstr("the state of hook 'mean_norm' in the checkpoint has version '1', and the "
                        "plugin reads version '2'"));
  const std::vector<std::string> forgets = {kMeanNorm, "mean_norm.version=0"};
  Train(kMlp, {2}, "whole", forgets);
  Interrupt(kMlp, 2, "part", forgets);
  GoOn(kMlp, 2, "part", forgets);
  EXPECT_NE(Tensors("part"), Tensors("whole"));
}

TEST_F(Resume, ACheckpointOfAnyNumberOfRanksServesAnyOther) {
  const Training whole = Train(kMlp, {1}, "whole");
  Interrupt(kMlp, 2, "two", {Sharded()});
  const std::vector<double> rest(whole.losses.begin() + 10, whole.losses.end());
  for (const int ranks : {1, 3, 4}) {
    folder_.Write("other", ReadWhole(folder_ / "two"));
    const Training second = GoOn(kMlp, ranks, "other", {Sharded(ranks == 4)});
    ExpectSameLosses(second.losses, rest, kRounding, std::to_string(ranks) + " ranks");
    ExpectNearTensors("other", "whole");
  }
}

TEST_F(Resume, WithoutAConfigurationTheCommandTakesThatOfTheCheckpoint) {
  folder_.Write("mlp.pbtxt", kMlp);
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {"run", "-q", "-n", "2", "--plugin-path", ENGINE_TEST_FIXTURES});
    const Outcome outcome = Engine(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.err;
  };
  const std::string constant = "train.learning_rate.schedule=constant";
  run({"mlp.pbtxt", "--plugins", "mean_norm", "--set", constant, "--set",
       "output.checkpoint=whole"});
  run({"mlp.pbtxt", "--plugins", "mean_norm", "--set", constant, "--set", "output.checkpoint=part",
       "--set", "train.steps=10", "--set", "output.metrics=part.jsonl"});
  EXPECT_EQ(LossesOf(folder_ / "part.jsonl").size(), 10u);
  // It writes to the file that it reads, and to no other that only the checkpoint names.
  EXPECT_THAT(run({"--resume", "part", "--set", "train.steps=15"}),
              HasSubstr("give --set output.metrics=FILE"));
  EXPECT_EQ(LossesOf(folder_ / "part.jsonl").size(), 10u);
  run({"--resume", "part", "--set", "train.steps=20", "--set", "output.metrics=part.jsonl"});
  EXPECT_EQ(Tensors("part"), Tensors("whole"));
  EXPECT_EQ(LossesOf(folder_ / "part.jsonl").size(), 15u);
}

// A job that is queued again says the same each time.
TEST_F(Resume, AutoTakesTheNewestCheckpointThatIsNotDamaged) {
  folder_.Write("mlp.pbtxt", kMlp);
  const auto run = [&](const std::string& steps, const std::string& more = "seed=3") {
    const Outcome outcome = Engine(
        {"run", "mlp.pbtxt", "--resume", "auto", "--set", "train.steps=" + steps, "--set",
         "train.learning_rate.schedule=constant", "--set", "train.checkpoint_every=10", "--set",
         "output.checkpoint=m.st", "--set", "output.keep_checkpoints=3", "--set", more});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(run("10"), HasSubstr("no checkpoint m.st yet: from the beginning"));
  EXPECT_THAT(run("20"), HasSubstr("goes on from m.st\n"));
  Train(kMlp, {1}, "whole", {"train.learning_rate.schedule=constant"});
  EXPECT_EQ(Tensors("m.st"), Tensors("whole"));
  for (const char* name : {"m.st", "m.000020.st"}) {
    std::filesystem::remove(folder_ / name);  // two names of one file
    folder_.Write(name, "not a checkpoint");
  }
  const std::string left_out = run("25");
  EXPECT_THAT(left_out, AllOf(HasSubstr("left out: "), HasSubstr("m.000020.st"),
                              HasSubstr("goes on from m.000010.st\n")));
  EXPECT_THAT(Engine({"run", "mlp.pbtxt", "--resume", "auto"}).err,
              HasSubstr("set 'output.checkpoint'"));
}

TEST_F(Resume, ARunReplacesNoCheckpointOfAnother) {
  folder_.Write("mlp.pbtxt", kMlp);
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run", "-q", "mlp.pbtxt", "--set", "output.checkpoint=m.st"});
    return Engine(more);
  };
  EXPECT_EQ(run({}).exit_code, 0);
  const std::string trained = ReadWhole(folder_ / "m.st");
  const std::vector<std::string> longer = {"--set", "train.steps=30"};
  const Outcome again = run(longer);
  EXPECT_EQ(again.exit_code, 78);
  EXPECT_THAT(again.err, HasSubstr("output.checkpoint: m.st is the checkpoint of step 20 of "
                                   "another run: go on from it (--resume auto)"));
  folder_.Write("other.st", trained);
  EXPECT_EQ(run({"--resume", "other.st", "--set", "train.steps=30"}).exit_code, 78);
  EXPECT_EQ(ReadWhole(folder_ / "m.st"), trained);
  folder_.Write("n.000005.st", "a file");
  EXPECT_THAT(run({"--set", "output.checkpoint=n.st", "--set", "output.keep_checkpoints=2"}).err,
              HasSubstr("n.000005.st is a file that this run has not written"));
  EXPECT_EQ(run({"--resume", "m.st", "--set", "train.steps=30"}).exit_code, 0) << "its own";
  EXPECT_EQ(run({"--force"}).exit_code, 0);
}

// Nothing is better by so much: the first evaluation stays the best, and the second after it is the last.
TEST_F(Resume, EarlyStoppingEndsAllRanksAndTheBestIsKept) {
  const std::string constant = "train.learning_rate.schedule=constant";
  Train(kMlp, {1}, "two", {constant, "train.steps=2"});
  Train(kMlp, {1}, "six", {constant, "train.steps=6"});
  const std::vector<std::string> stopping = {constant, "train.evaluate_every=2",
                                             "train.early_stopping.min_delta=1e6",
                                             "output.best_checkpoint=" + (folder_ / "best")};
  std::vector<std::string> soon = stopping;
  soon.push_back("train.early_stopping.patience=2");
  for (const int ranks : {1, 3}) {
    EXPECT_EQ(Train(kMlp, {ranks}, "last", soon).losses.size(), 6u) << ranks;
    ExpectNearTensors("best", "two");
    ExpectNearTensors("last", "six");
  }
  // A run that goes on knows of evaluations before.
  std::vector<std::string> first = stopping;
  first.push_back("train.steps=4");
  Train(kMlp, {2}, "part", first);
  EXPECT_EQ(GoOn(kMlp, 2, "part", soon).losses.size(), 2u);
  soon.push_back("train.early_stopping.metric=rmse");
  EXPECT_EQ(TrainWithThreads(kMlp, Members{.ranks = 2}, soon, /*expect_ok=*/false).status.code(),
            StatusCode::kConfig);
}

}  // namespace
}  // namespace engine::test
