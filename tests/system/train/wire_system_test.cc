// Whole runs whose gradients travel in another form: cast_bf16, cast_fp16, topk.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/system/train/run_test.h"

namespace engine::test {
namespace {

constexpr char kConfig[] =
    "seed: 3 model { mlp { hidden: [48, 32] } }\n"
    "data { synthetic { samples: 200 eval_samples: 20 shape: 16 classes: 4 } }\n"
    "train { steps: 60 global_batch: 24 learning_rate { base: 0.05 } }\n"
    "sgd { momentum: 0.9 weight_decay: 0.001 } cpu_ops { threads: 1 }\n"
    "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n";

std::string Hook(const std::string& hook, const std::string& scheduler = "fifo_sched",
                 const std::string& communicator = "tcp") {
  return Plugins(communicator, scheduler, "sgd", "," + hook);
}

void ExpectAllRanksEqual(const Training& training) {
  ASSERT_FALSE(training.parameters.empty());
  ASSERT_FALSE(training.parameters[0].empty());
  EXPECT_THAT(training.parameters, Each(training.parameters[0]));
}

using WireRun = RunTest;

struct Variant {
  std::string scheduler;
  std::vector<std::string> overrides;
};
const std::vector<Variant> kVariants = {
    {"sequential_sched", {}},
    {"fifo_sched", {"fifo_sched.fuse_bytes=1000", "fifo_sched.slice_bytes=600"}},
    {"priority_sched", {"priority_sched.slice_bytes=600", "priority_sched.credit_bytes=1500"}},
    {"dear_sched", {"dear_sched.group_bytes=2000"}},
};

// Of 20 steps; the sums of two ranks are rounded once, wherever a scheduler cuts gradients.
TEST_F(WireRun, CastsTrainAsFloat32DoesUnderAllSchedulers) {
  struct Cast {
    std::string hook;
    double tolerance;
  };
  for (const int ranks : {2, 3}) {
    const Training plain = Train(kConfig, {ranks}, "plain", {"train.steps=20"});
    for (const Cast& cast : {Cast{"cast_bf16", 0.05}, Cast{"cast_fp16", 0.01}}) {
      std::map<std::string, std::vector<uint8_t>> first;
      for (const Variant& variant : kVariants) {
        for (const bool sharded : {false, true}) {
          SCOPED_TRACE(cast.hook + ", " + variant.scheduler + ", ranks " + std::to_string(ranks) +
                       ", " + Sharded(sharded));
          std::vector<std::string> overrides = variant.overrides;
          overrides.insert(overrides.end(), {Hook(cast.hook, variant.scheduler), Sharded(sharded),
                                             "train.steps=20"});
          const Training run = Train(kConfig, {ranks}, "run", overrides);
          ExpectAllRanksEqual(run);
          EXPECT_NE(Tensors("run"), Tensors("plain")) << "rounding must show";
          ExpectNearTensors("run", "plain", cast.tolerance);
          ExpectSameLosses(run.losses, plain.losses, cast.tolerance, "losses");
          if (first.empty()) first = Tensors("run");
          if (ranks == 2) {
            EXPECT_EQ(Tensors("run"), first);
          }
        }
      }
    }
  }
}

TEST_F(WireRun, TopKGivesAllRanksTheSameBitsUnderAllSchedulers) {
  for (const int ranks : {2, 3}) {
    for (const Variant& variant : kVariants) {
      SCOPED_TRACE(variant.scheduler + ", ranks " + std::to_string(ranks));
      std::vector<std::string> overrides = variant.overrides;
      overrides.push_back(Hook("topk", variant.scheduler));
      const Training run = TrainWithThreads(kConfig, ranks, overrides);
      ExpectAllRanksEqual(run);
      EXPECT_LT(run.losses.back(), run.losses.front());
    }
  }
}

TEST_F(WireRun, AResumedRunIsTheUninterruptedOneToTheBit) {
  for (const std::string hook : {"topk", "cast_bf16"}) {
    for (const int ranks : {1, 2, 3}) {
      const auto tensors = ExpectGoesOnToTheBit(kConfig, ranks, {Hook(hook), "train.steps=20"});
      for (const auto& [name, bytes] : tensors) {
        if (name.starts_with("optimizer/") || name.starts_with("hook/")) continue;
        for (int rank = 0; rank < 3; ++rank) {
          const bool stored =
              tensors.contains("hook/topk/mean_residual/" + std::to_string(rank) + "/" + name);
          EXPECT_EQ(stored, hook == "topk" && ranks > 1 && rank < ranks) << name;
        }
      }
    }
  }
}

// float16 ends at 65504. The run ends with the step after that, and keeps no checkpoint of it.
TEST_F(WireRun, AnOverflowEndsTheRun) {
  const Training run = TrainWithThreads(
      kConfig, {.ranks = 2},
      {Hook("cast_fp16"), "train.loss_scale=1e7", "output.checkpoint=" + (folder_ / "model")},
      /*expect_ok=*/false);
  EXPECT_EQ(run.exit_code, 78);
  EXPECT_THAT(run.status.message(),
              AllOf(HasSubstr("the loss of step 2 is not finite"), HasSubstr("train.loss_scale")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "model"));
}

// It begins above what float16 can carry, and grows to it again and again: steps are skipped before
// and after the run goes on.
TEST_F(WireRun, ALossScaleThatMovesGoesOnToTheBit) {
  for (const std::string& how : {Sharded(false), Sharded(), std::string("train.micro_batches=2")}) {
    const std::vector<std::string> moves = {Hook("cast_fp16,clip_norm"),
                                            "clip_norm.max_norm=1",
                                            "train.steps=20",
                                            how,
                                            "train.loss_scaling.mode=dynamic",
                                            "train.loss_scaling.first=16777216",
                                            "train.loss_scaling.growth_interval=2"};
    const auto tensors = ExpectGoesOnToTheBit(kConfig, 2, moves);
    ASSERT_TRUE(tensors.contains("saved/hook/loss_scaling/0"));
    const std::vector<uint8_t>& saved = tensors.at("saved/hook/loss_scaling/0");
    EXPECT_EQ(saved, tensors.at("saved/hook/loss_scaling/1"));
    EXPECT_GT(saved[0], 7) << "steps were skipped";
    EXPECT_LT(saved[0], 15) << "steps were made";
    ExpectAllRanksEqual(TrainWithThreads(kConfig, 2, moves));
  }
}

TEST_F(WireRun, WhatDoesNotGoWithAScaleThatMovesIsRefused) {
  const std::pair<std::string, const char*> cases[] = {
      {Hook("topk"), "what hook 'topk' keeps of a step"},
      {"train.loss_scale=2", "does not go with train.loss_scale:"}};
  for (const auto& [more, sentence] : cases) {
    const Training run = TrainWithThreads(
        kConfig, {.ranks = 2}, {more, "train.loss_scaling.mode=dynamic"}, /*expect_ok=*/false);
    EXPECT_EQ(run.exit_code, 78);
    EXPECT_THAT(run.status.message(), HasSubstr(sentence));
  }
}

// Every warning: tests/unit/exec/error_feedback_test.cc.
TEST_F(WireRun, StatesThatCannotGoOnAreNamedInTheLogOfRankZero) {
  Interrupt(kConfig, 2, "packed", {Hook("topk")});
  ::testing::internal::CaptureStderr();
  Train(kConfig, {.ranks = 3, .resume = folder_ / "packed"}, "run",
        {Hook("topk"), "train.steps=11"});
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("'hook/topk/mean_residual' of the checkpoint is that of 2 ranks, and this run has "
                "3: rank 0 goes on with their sum"));
}

}  // namespace
}  // namespace engine::test
