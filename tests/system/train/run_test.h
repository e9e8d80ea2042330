// Whole runs that leave their checkpoints in a folder of the test, and what two of them must have
// in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"

namespace engine::test {

// Sums of several ranks are rounded elsewhere than those of one: 2^-23 per addition, which training
// carries on.
inline constexpr double kRounding = 1e-5;

// Steps of 15 samples over an epoch of 50, whose last step has 5: no step divides evenly, step 10
// is within an epoch, and with 2 ranks and 4 micro-batches some are empty. Each rank has one
// thread, because few ranks get a processor of their own here.
inline constexpr char kMlp[] =
    "seed: 3 model { mlp { hidden: [24, 16] } }\n"
    "data { synthetic { samples: 50 eval_samples: 21 shape: 8 classes: 4 } }\n"
    "train { steps: 20 global_batch: 15\n"
    "  learning_rate { base: 0.1 schedule: COSINE warmup_steps: 3 } }\n"
    "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"
    "sgd { momentum: 0.9 weight_decay: 0.01 } cpu_ops { threads: 1 }\n"
    "dear_sched { group_bytes: 2000 }\n";

inline const std::vector<std::string> kSchedulers = {"sequential_sched", "fifo_sched",
                                                     "priority_sched", "dear_sched"};

inline std::string Plugins(const std::string& communicator, const std::string& scheduler,
                           const std::string& optimizer = "sgd", const std::string& more = "") {
  return "plugins=" + communicator + "," + scheduler + "," + optimizer + ",cpu_ops" + more;
}

inline std::string Sharded(bool sharded = true) {
  return std::string("train.shard_optimizer=") + (sharded ? "true" : "false");
}

// Losses and evaluations of two runs; those of rank 0.
inline void ExpectSameRun(const Training& run, const Training& expected, double tolerance,
                          const std::string& what) {
  ExpectSameLosses(run.losses, expected.losses, tolerance, what);
  EXPECT_EQ(run.samples, expected.samples) << what;
  ASSERT_EQ(run.evaluations.size(), expected.evaluations.size()) << what;
  for (size_t i = 0; i < expected.evaluations.size(); ++i) {
    const train::EvaluationReport &is = run.evaluations[i], &should = expected.evaluations[i];
    EXPECT_EQ(is.targets, should.targets) << what;
    EXPECT_NEAR(is.loss, should.loss, tolerance * should.loss) << what;
  }
}

class RunTest : public ::testing::Test {
 protected:
  // `model`: more keys of it. Its head shares the table of the tokens unless they say otherwise.
  std::string Gpt(const std::string& model = "") const {
    std::mt19937 random(7);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "etaoin shrdlu\n"[random() % 14];
    return "seed: 3 model { gpt { layers: 2 width: 16 heads: 2 " + model +
           " } }\n"
           "data { text { path: \"" +
           folder_.Write("text.txt", text) +
           "\" context: 8 } }\n"
           "train { steps: 20 global_batch: 6\n"
           "  learning_rate { base: 0.003 } }\n"
           "plugins: [\"tcp\", \"priority_sched\", \"adamw\", \"cpu_ops\", \"clip_norm\"]\n"
           "clip_norm { max_norm: 0.5 } cpu_ops { threads: 1 }\n";
  }

  // Trains with threads; the last checkpoint is then at `name`.
  Training Train(const std::string& config, const Members& members, const std::string& name,
                 std::vector<std::string> more = {}) const {
    more.push_back("output.checkpoint=" + (folder_ / name));
    return TrainWithThreads(config, members, more, /*expect_ok=*/members.dies_after == 0);
  }
  // Leaves the checkpoint of step 10 of a run that came to step 15.
  Training Interrupt(const std::string& config, int ranks, const std::string& name,
                     std::vector<std::string> more = {}) const {
    more.push_back("train.checkpoint_every=10");
    std::filesystem::remove(folder_ / name);
    Training training = Train(config, {.ranks = ranks, .dies_after = 15}, name, more);
    EXPECT_EQ(training.status.code(), StatusCode::kInternal) << training.status.message();
    EXPECT_EQ(training.losses.size(), 15u);
    return training;
  }
  // Goes on from the checkpoint at `name` and replaces it.
  Training GoOn(const std::string& config, int ranks, const std::string& name,
                const std::vector<std::string>& more = {}) const {
    return Train(config, {.ranks = ranks, .resume = folder_ / name}, name, more);
  }
  std::map<std::string, std::vector<uint8_t>> Tensors(const std::string& name) const {
    return TensorsOf(folder_ / name);
  }
  // Twenty steps are ten and, in a run that goes on, ten more. What they end with.
  std::map<std::string, std::vector<uint8_t>> ExpectGoesOnToTheBit(
      const std::string& config, int ranks, const std::vector<std::string>& more = {}) const {
    SCOPED_TRACE(config.substr(0, 22) + ", " + std::to_string(ranks) + " ranks" +
                 ::testing::PrintToString(more));
    const Training whole = Train(config, {ranks}, "whole", more);
    const Training first = Interrupt(config, ranks, "part", more);
    EXPECT_NE(Tensors("part"), Tensors("whole"));
    const Training second = GoOn(config, ranks, "part", more);
    EXPECT_EQ(Tensors("part"), Tensors("whole"));
    EXPECT_EQ(whole.losses.size(), 20u);
    std::vector<double> losses(first.losses.begin(), first.losses.begin() + 10);
    losses.insert(losses.end(), second.losses.begin(), second.losses.end());
    EXPECT_EQ(losses, whole.losses);
    EXPECT_TRUE(std::equal(first.losses.begin(), first.losses.end(), whole.losses.begin()));
    EXPECT_TRUE(std::equal(second.samples.rbegin(), second.samples.rend(), whole.samples.rbegin()));
    return Tensors("part");
  }
  void ExpectNearTensors(const std::string& actual, const std::string& expected,
                         double tolerance = kRounding) const {
    ExpectSameTensors(folder_ / actual, folder_ / expected, tolerance);
  }

  // The real binary, in the folder.
  Outcome Engine(const std::vector<std::string>& arguments) const {
    return RunEngine(folder_.path().native(), arguments);
  }

  TempFolder folder_;
};

}  // namespace engine::test
