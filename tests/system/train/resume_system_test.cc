// A run that was interrupted and goes on is the run that was not interrupted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Sums of another number of ranks are rounded elsewhere, which training carries on.
constexpr double kTolerance = 1e-5;

// Steps of 15 samples over an epoch of 50, whose last step has 5: step 10 is within an epoch.
constexpr char kMlp[] =
    "seed: 3 model { mlp { hidden: [24, 16] } }\n"
    "data { synthetic { samples: 50 eval_samples: 21 shape: 8 classes: 4 } }\n"
    "train { steps: 20 global_batch: 15 checkpoint_every: 10\n"
    "  learning_rate { base: 0.1 schedule: COSINE warmup_steps: 3 } }\n"
    "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"
    "sgd { momentum: 0.9 weight_decay: 0.01 } cpu_ops { threads: 1 }\n";

std::string GptConfig(const std::string& text_path) {
  return "seed: 3 model { gpt { layers: 2 width: 16 heads: 2 tied: false } }\n"
         "data { text { path: \"" +
         text_path +
         "\" context: 8 } }\n"
         "train { steps: 20 global_batch: 6 checkpoint_every: 10 learning_rate { base: 0.003 } }\n"
         "plugins: [\"tcp\", \"priority_sched\", \"adamw\", \"cpu_ops\", \"clip_norm\"]\n"
         "clip_norm { max_norm: 0.5 } cpu_ops { threads: 1 }\n";
}

class Resume : public ::testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(7);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "etaoin shrdlu\n"[random() % 14];
    gpt_ = GptConfig(folder_.Write("text.txt", text));
    folder_.Write("mlp.pbtxt", kMlp);
  }

  std::vector<std::string> WithCheckpoint(const std::string& name,
                                          std::vector<std::string> more = {}) const {
    more.push_back("output.checkpoint=" + (folder_ / name));
    return more;
  }

  // Leaves the checkpoint of step 10 of a run that came to step 15.
  Training Interrupt(const std::string& config, int ranks, const std::string& name,
                     const std::vector<std::string>& more = {}) {
    Training training = TrainWithThreads(config, {.ranks = ranks, .dies_after = 15},
                                         WithCheckpoint(name, more), /*expect_ok=*/false);
    EXPECT_EQ(training.status.code(), StatusCode::kInternal) << training.status.message();
    EXPECT_EQ(training.losses.size(), 15u);
    return training;
  }

  // Goes on from that checkpoint and replaces it.
  Training GoOn(const std::string& config, int ranks, const std::string& name,
                const std::vector<std::string>& more = {}) {
    return TrainWithThreads(config, {.ranks = ranks, .resume = folder_ / name},
                            WithCheckpoint(name, more));
  }

  Outcome RunEngineHere(const std::vector<std::string>& arguments) const {
    return RunEngine(folder_.path().native(), arguments);
  }

  TempFolder folder_;
  std::string gpt_;
};

struct Case {
  const char* what;
  int ranks;
  std::vector<std::string> more;
};

TEST_F(Resume, TwentyStepsAreTenAndTenMoreToTheBit) {
  const std::vector<Case> cases = {
      {"one rank", 1, {}},
      {"two ranks", 2, {}},
      {"two ranks, sharded", 2, {"train.shard_optimizer=true"}},
      {"three ranks, sharded", 3, {"train.shard_optimizer=true"}},
  };
  for (const std::string& config : {std::string(kMlp), gpt_}) {
    for (const Case& one : cases) {
      const std::string what = config.substr(0, 22) + ", " + one.what;
      const Training whole =
          TrainWithThreads(config, {.ranks = one.ranks}, WithCheckpoint("whole", one.more));
      const auto expected = TensorsOf(folder_ / "whole");
      const Training first = Interrupt(config, one.ranks, "part", one.more);
      EXPECT_NE(TensorsOf(folder_ / "part"), expected) << what;
      const Training second = GoOn(config, one.ranks, "part", one.more);
      EXPECT_EQ(TensorsOf(folder_ / "part"), expected) << what;

      ASSERT_EQ(whole.losses.size(), 20u) << what;
      EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 10, whole.losses.end()))
          << what;
      EXPECT_EQ(second.samples,
                std::vector<int64_t>(whole.samples.begin() + 10, whole.samples.end()))
          << what;
      EXPECT_TRUE(std::equal(first.losses.begin(), first.losses.end(), whole.losses.begin()))
          << what;
    }
  }
}

TEST_F(Resume, ACheckpointOfAnyNumberOfRanksServesAnyOther) {
  const Training whole = TrainWithThreads(kMlp, {.ranks = 1}, WithCheckpoint("whole"));
  const std::vector<double> rest(whole.losses.begin() + 10, whole.losses.end());
  const std::vector<std::string> sharded = {"train.shard_optimizer=true"};
  Interrupt(kMlp, 2, "two", sharded);
  for (const Case& one : {Case{"1", 1, {}}, Case{"3", 3, {}}, Case{"4, sharded", 4, sharded}}) {
    std::filesystem::copy_file(folder_ / "two", folder_ / "other",
                               std::filesystem::copy_options::overwrite_existing);
    const Training second = GoOn(kMlp, one.ranks, "other", one.more);
    ExpectSameLosses(second.losses, rest, kTolerance, one.what);
    ExpectSameTensors(folder_ / "other", folder_ / "whole", kTolerance);
  }
}

TEST_F(Resume, AResumedRunCanBeInterruptedAgain) {
  const std::vector<std::string> often = {"train.checkpoint_every=3"};
  TrainWithThreads(kMlp, {.ranks = 2}, WithCheckpoint("whole"));
  TrainWithThreads(kMlp, {.ranks = 2, .dies_after = 5}, WithCheckpoint("part", often), false);
  for (const int64_t end : {8, 13, 17}) {
    TrainWithThreads(kMlp, {.ranks = 2, .resume = folder_ / "part", .dies_after = end},
                     WithCheckpoint("part", often), false);
  }
  GoOn(kMlp, 2, "part", often);
  EXPECT_EQ(TensorsOf(folder_ / "part"), TensorsOf(folder_ / "whole"));
}

TEST_F(Resume, AnotherGlobalBatchGoesOnAtTheSamePlace) {
  Interrupt(kMlp, 1, "part");
  // Step 10 has seen 2 epochs of 4 steps, and 30 samples: 3 batches of 10.
  const Training second = GoOn(kMlp, 1, "part", {"train.global_batch=10"});
  EXPECT_EQ(second.samples, std::vector<int64_t>(10, 10));
  ASSERT_EQ(second.losses.size(), 10u);
}

TEST_F(Resume, WithoutAConfigurationTheCommandTakesThatOfTheCheckpoint) {
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "run");
    arguments.insert(arguments.end(), {"-q", "-n", "2"});
    const Outcome outcome = RunEngineHere(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  };
  run({"mlp.pbtxt", "--set", "output.checkpoint=whole", "--set",
       "train.learning_rate.schedule=constant"});
  run({"mlp.pbtxt", "--set", "train.steps=10", "--set", "output.checkpoint=part", "--set",
       "output.metrics=part.jsonl", "--set", "train.learning_rate.schedule=constant"});
  EXPECT_EQ(LossesOf(folder_ / "part.jsonl").size(), 10u);
  // It writes to the file that it reads, and appends its metrics.
  run({"--resume", "part", "--set", "train.steps=20"});
  EXPECT_EQ(TensorsOf(folder_ / "part"), TensorsOf(folder_ / "whole"));
  EXPECT_EQ(LossesOf(folder_ / "part.jsonl").size(), 20u);
}

TEST_F(Resume, WhatCannotBeContinuedIsRefused) {
  ASSERT_EQ(RunEngineHere({"run", "mlp.pbtxt", "-q", "--set", "output.checkpoint=done"}).exit_code,
            0);
  const std::string done = ReadWhole(folder_ / "done");
  const auto refusal = [&](int exit_code, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"run", "-q"});
    const Outcome outcome = RunEngineHere(arguments);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    return outcome.err;
  };
  const std::string more = "train.steps=30";
  EXPECT_THAT(refusal(66, {"--resume", "none"}), HasSubstr("'none'"));
  EXPECT_THAT(refusal(66, {"mlp.pbtxt", "--resume", "none"}), HasSubstr("'none'"));
  std::string damaged = done;
  damaged[damaged.size() - 5] ^= 1;
  folder_.Write("damaged", damaged);
  EXPECT_THAT(refusal(65, {"--resume", "damaged"}), HasSubstr("digest"));
  EXPECT_THAT(refusal(78, {"--resume", "done"}),
              AllOf(HasSubstr("it has 20 steps"), HasSubstr("raise it")));
  EXPECT_THAT(refusal(78, {"--resume", "done", "--set", more, "--plugins", "adamw"}),
              AllOf(HasSubstr("'sgd'"), HasSubstr("'adamw'")));
  EXPECT_THAT(refusal(65, {"--resume", "done", "--set", more, "--set", "model.mlp.hidden=24"}),
              HasSubstr("another model"));
  EXPECT_THAT(refusal(65, {"--resume", "done", "--set", more, "--set", "model.mlp.hidden=24,17"}),
              HasSubstr("another shape"));
  EXPECT_EQ(ReadWhole(folder_ / "done"), done) << "a refused run changed its checkpoint";
  // Without momentum there are no states; the other way round they are missing.
  ASSERT_EQ(RunEngineHere({"run", "mlp.pbtxt", "-q", "--set", "sgd.momentum=0", "--set",
                           "output.checkpoint=plain"})
                .exit_code,
            0);
  EXPECT_THAT(refusal(65, {"--resume", "plain", "--set", more, "--set", "sgd.momentum=0.9"}),
              AllOf(HasSubstr("no 'momentum'"), HasSubstr("other options")));
}

}  // namespace
}  // namespace engine::testing
