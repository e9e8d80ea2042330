// A run that was interrupted and goes on is the run that was not interrupted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/system/train/run_test.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Resume = RunTest;

struct Case {
  const char* what;
  int ranks;
  std::vector<std::string> more;
};

template <typename T>
std::vector<T> From(size_t begin, const std::vector<T>& values) {
  return {values.begin() + static_cast<std::ptrdiff_t>(begin), values.end()};
}

TEST_F(Resume, TwentyStepsAreTenAndTenMoreToTheBit) {
  const std::vector<Case> cases = {
      {"one rank", 1, {}},
      {"two ranks", 2, {}},
      {"two ranks, sharded", 2, {Sharded()}},
      {"three ranks, sharded", 3, {Sharded()}},
      {"two ranks, micro-batches", 2, {"train.micro_batches=2", "train.loss_scale=64"}},
  };
  for (const std::string& config : {std::string(kMlp), Gpt(), Gpt("tied: false")}) {
    for (const Case& one : cases) {
      SCOPED_TRACE(config.substr(0, 22) + ", " + one.what);
      const Training whole = Train(config, {one.ranks}, "whole", one.more);
      const Training first = Interrupt(config, one.ranks, "part", one.more);
      EXPECT_NE(Tensors("part"), Tensors("whole"));
      const Training second = GoOn(config, one.ranks, "part", one.more);
      EXPECT_EQ(Tensors("part"), Tensors("whole"));

      ASSERT_EQ(whole.losses.size(), 20u);
      EXPECT_EQ(second.losses, From(10, whole.losses));
      EXPECT_EQ(second.samples, From(10, whole.samples));
      EXPECT_TRUE(std::equal(first.losses.begin(), first.losses.end(), whole.losses.begin()));
    }
  }
}

TEST_F(Resume, ACheckpointOfAnyNumberOfRanksServesAnyOther) {
  const Training whole = Train(kMlp, {1}, "whole");
  Interrupt(kMlp, 2, "two", {Sharded()});
  for (const Case& one : {Case{"1", 1, {}}, Case{"3", 3, {}}, Case{"4", 4, {Sharded()}}}) {
    folder_.Write("other", ReadWhole(folder_ / "two"));
    const Training second = GoOn(kMlp, one.ranks, "other", one.more);
    ExpectSameLosses(second.losses, From(10, whole.losses), kRounding, one.what);
    ExpectNearTensors("other", "whole");
  }
}

TEST_F(Resume, AnotherGlobalBatchGoesOnAtTheSamePlace) {
  Interrupt(kMlp, 1, "part");
  // Step 10 has seen 2 epochs of 4 steps, and 30 samples: 3 batches of 10.
  const Training second = GoOn(kMlp, 1, "part", {"train.global_batch=10"});
  EXPECT_EQ(second.samples, std::vector<int64_t>(10, 10));
  ASSERT_EQ(second.losses.size(), 10u);
}

TEST_F(Resume, WithoutAConfigurationTheCommandTakesThatOfTheCheckpoint) {
  folder_.Write("mlp.pbtxt", kMlp);
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"run", "-q", "-n", "2"});
    const Outcome outcome = Engine(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.err;
  };
  const std::string constant = "train.learning_rate.schedule=constant";
  run({"mlp.pbtxt", "--set", constant, "--set", "output.checkpoint=whole"});
  run({"mlp.pbtxt", "--set", constant, "--set", "output.checkpoint=part", "--set", "train.steps=10",
       "--set", "output.metrics=part.jsonl"});
  EXPECT_EQ(LossesOf(folder_ / "part.jsonl").size(), 10u);
  // It writes to the file that it reads, and to no other that only the checkpoint names.
  EXPECT_THAT(run({"--resume", "part", "--set", "train.steps=15"}),
              HasSubstr("give --set output.metrics=FILE"));
  EXPECT_EQ(LossesOf(folder_ / "part.jsonl").size(), 10u);
  run({"--resume", "part", "--set", "train.steps=20", "--set", "output.metrics=part.jsonl"});
  EXPECT_EQ(Tensors("part"), Tensors("whole"));
  EXPECT_EQ(LossesOf(folder_ / "part.jsonl").size(), 15u);
}

TEST_F(Resume, WhatCannotBeContinuedIsRefused) {
  folder_.Write("mlp.pbtxt", kMlp);
  Train(kMlp, {1}, "done");
  // Without momentum there are no states; the other way round they are missing.
  Train(kMlp, {1}, "plain", {"sgd.momentum=0"});
  const std::string done = ReadWhole(folder_ / "done");
  std::string damaged = done;
  damaged[damaged.size() - 5] ^= 1;
  folder_.Write("damaged", damaged);
  const auto refusal = [&](int exit_code, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"run", "-q"});
    const Outcome outcome = Engine(arguments);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    return outcome.err;
  };
  const std::string more = "train.steps=30";
  EXPECT_THAT(refusal(66, {"--resume", "none"}), HasSubstr("'none'"));
  EXPECT_THAT(refusal(66, {"mlp.pbtxt", "--resume", "none"}), HasSubstr("'none'"));
  EXPECT_THAT(refusal(65, {"--resume", "damaged"}), HasSubstr("digest"));
  EXPECT_THAT(refusal(78, {"--resume", "done"}),
              AllOf(HasSubstr("it has 20 steps"), HasSubstr("raise it")));
  EXPECT_THAT(refusal(78, {"--resume", "done", "--set", more, "--plugins", "adamw"}),
              AllOf(HasSubstr("'sgd'"), HasSubstr("'adamw'")));
  EXPECT_THAT(refusal(65, {"--resume", "done", "--set", more, "--set", "model.mlp.hidden=24"}),
              HasSubstr("another model"));
  EXPECT_THAT(refusal(65, {"--resume", "done", "--set", more, "--set", "model.mlp.hidden=24,17"}),
              HasSubstr("another shape"));
  EXPECT_THAT(refusal(65, {"--resume", "plain", "--set", more, "--set", "sgd.momentum=0.9"}),
              AllOf(HasSubstr("no 'momentum'"), HasSubstr("other options")));
  EXPECT_EQ(ReadWhole(folder_ / "done"), done) << "a refused run changed its checkpoint";
}

}  // namespace
}  // namespace engine::testing
