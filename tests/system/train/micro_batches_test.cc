// Micro-batches, loss scale and rates of single parameters in whole runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"
#include "tests/support/training.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Sums are rounded elsewhere, which training carries on.
constexpr double kTolerance = 1e-5;

// Steps of 15 samples over an epoch of 50, whose last step has 5: with 2 ranks and 4 micro-batches
// some are empty.
std::string MlpConfig(const std::string& communicator, const std::string& scheduler) {
  return "seed: 3 model { mlp { hidden: [24, 16] } }\n"
         "data { synthetic { samples: 50 eval_samples: 21 shape: 8 classes: 4 } }\n"
         "train { steps: 12 global_batch: 15 checkpoint_every: 6\n"
         "  learning_rate { base: 0.1 schedule: COSINE warmup_steps: 3 } }\n"
         "plugins: [\"" +
         communicator + "\", \"" + scheduler +
         "\", \"sgd\", \"cpu_ops\"]\n"
         "sgd { momentum: 0.9 weight_decay: 0.01 } cpu_ops { threads: 1 }\n"
         "dear_sched { group_bytes: 2000 }\n";
}

// The head shares the table of the tokens.
std::string GptConfig(const std::string& text_path) {
  return "seed: 3 model { gpt { layers: 2 width: 16 heads: 2 } }\n"
         "data { text { path: \"" +
         text_path +
         "\" context: 8 } }\n"
         "train { steps: 12 global_batch: 6 checkpoint_every: 6 learning_rate { base: 0.003 } }\n"
         "plugins: [\"tcp\", \"priority_sched\", \"adamw\", \"cpu_ops\", \"clip_norm\"]\n"
         "clip_norm { max_norm: 0.5 } cpu_ops { threads: 1 }\n";
}

class MicroBatches : public ::testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(7);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "etaoin shrdlu\n"[random() % 14];
    gpt_ = GptConfig(folder_.Write("text.txt", text));
  }

  std::vector<std::string> With(const std::string& checkpoint,
                                std::vector<std::string> more = {}) const {
    more.push_back("output.checkpoint=" + (folder_ / checkpoint));
    return more;
  }

  void ExpectSame(const Training& run, const Training& expected, const std::string& what) {
    ASSERT_TRUE(run.status.ok()) << what << ": " << run.status.message();
    ExpectSameLosses(run.losses, expected.losses, kTolerance, what);
    ASSERT_EQ(run.evaluations.size(), expected.evaluations.size()) << what;
    for (size_t i = 0; i < run.evaluations.size(); ++i) {
      EXPECT_EQ(run.evaluations[i].targets, expected.evaluations[i].targets) << what;
      EXPECT_NEAR(run.evaluations[i].loss, expected.evaluations[i].loss,
                  kTolerance * expected.evaluations[i].loss)
          << what;
    }
  }

  TempFolder folder_;
  std::string gpt_;
};

TEST_F(MicroBatches, LossesAreThoseOfTheWholeBatchUnderEverySchedulerOnAnyRanks) {
  const Training expected =
      TrainWithThreads(MlpConfig("tcp", "sequential_sched"), 1, With("expected"));
  for (const std::string scheduler :
       {"sequential_sched", "fifo_sched", "priority_sched", "dear_sched"}) {
    for (const std::string communicator : {"tcp", "shm"}) {
      for (const std::string shard : {"false", "true"}) {
        const std::string parts = communicator == "tcp" ? "2" : "4";
        const Training run = TrainWithThreads(
            MlpConfig(communicator, scheduler), 2,
            With("run", {"train.micro_batches=" + parts, "train.shard_optimizer=" + shard}));
        const std::string what =
            scheduler + ", " + communicator + ", " + parts + " parts, sharded " + shard;
        ExpectSame(run, expected, what);
        ExpectSameTensors(folder_ / "run", folder_ / "expected", kTolerance);
      }
    }
  }
  for (const std::string parts : {"2", "4", "20"}) {
    const Training run = TrainWithThreads(MlpConfig("tcp", "fifo_sched"), 1,
                                          With("run", {"train.micro_batches=" + parts}));
    ExpectSame(run, expected, "one rank, " + parts + " parts");
  }
}

TEST_F(MicroBatches, AModelWhoseParametersHaveSeveralUsesTrainsAsWithTheWholeBatch) {
  const Training expected = TrainWithThreads(gpt_, 1, With("expected"));
  for (const int ranks : {1, 2}) {
    for (const std::string parts : {"2", "3", "4"}) {
      const Training run =
          TrainWithThreads(gpt_, ranks, With("run", {"train.micro_batches=" + parts}));
      ExpectSame(run, expected, std::to_string(ranks) + " ranks, " + parts + " parts");
    }
  }
}

TEST_F(MicroBatches, DropoutDropsTheSameAndSynchronisedBatchNormRuns) {
  const auto net = [](const std::string& layer) {
    return "seed: 3 model { net { layer { linear { units: 16 } } " + layer +
           " layer { relu {} } layer { linear { units: 4 } } } }\n"
           "data { synthetic { samples: 50 eval_samples: 21 shape: 8 classes: 4 } }\n"
           "train { steps: 12 global_batch: 15 learning_rate { base: 0.1 } }\n"
           "plugins: [\"tcp\", \"priority_sched\", \"sgd\", \"cpu_ops\"] cpu_ops { threads: 1 }\n";
  };
  const std::string dropout = net("layer { dropout { rate: 0.5 } }");
  const Training expected = TrainWithThreads(dropout, 1);
  for (const int ranks : {1, 2}) {
    const Training run = TrainWithThreads(dropout, ranks, {"train.micro_batches=3"});
    ExpectSame(run, expected, "dropout");
  }
  const std::string norm = net("layer { batch_norm {} }");
  const Training first = TrainWithThreads(norm, 2, {"train.micro_batches=4"});
  const Training second = TrainWithThreads(norm, 2, {"train.micro_batches=4"});
  ASSERT_EQ(first.losses.size(), 12u);
  EXPECT_EQ(first.losses, second.losses);
  ASSERT_EQ(first.buffers.size(), 2u);
  EXPECT_EQ(first.buffers[0], first.buffers[1]);
  EXPECT_NE(first.losses, TrainWithThreads(norm, 2).losses) << "statistics are of a micro-batch";
}

TEST_F(MicroBatches, AResumedRunIsTheRunToTheBit) {
  for (const std::string& config : {MlpConfig("tcp", "fifo_sched"), gpt_}) {
    for (const int ranks : {1, 2}) {
      const std::vector<std::string> parts = {"train.micro_batches=2", "train.loss_scale=64"};
      const Training whole = TrainWithThreads(config, ranks, With("whole", parts));
      TrainWithThreads(config, {.ranks = ranks, .dies_after = 9}, With("part", parts), false);
      const Training rest = TrainWithThreads(config, {.ranks = ranks, .resume = folder_ / "part"},
                                             With("part", parts));
      EXPECT_EQ(TensorsOf(folder_ / "part"), TensorsOf(folder_ / "whole"));
      EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 6, whole.losses.end()));
    }
  }
}

TEST_F(MicroBatches, APowerOfTwoAsLossScaleChangesNoBit) {
  for (const int ranks : {1, 2}) {
    for (const std::string shard : {"false", "true"}) {
      const std::string sharded = "train.shard_optimizer=" + shard;
      const Training expected = TrainWithThreads(gpt_, ranks, With("expected", {sharded}));
      for (const std::string scale : {"1024", "0.25"}) {
        const Training run =
            TrainWithThreads(gpt_, ranks, With("run", {sharded, "train.loss_scale=" + scale}));
        EXPECT_EQ(run.losses, expected.losses) << scale;
        EXPECT_EQ(TensorsOf(folder_ / "run"), TensorsOf(folder_ / "expected")) << scale;
      }
    }
  }
}

// The float32 numbers of one tensor.
std::vector<float> Numbers(const std::map<std::string, std::vector<uint8_t>>& tensors,
                           const std::string& name) {
  const std::vector<uint8_t>& bytes = tensors.at(name);
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

TEST_F(MicroBatches, ARunThatDivergesEndsAndKeepsACheckpointFromBefore) {
  const Training run = TrainWithThreads(
      MlpConfig("tcp", "fifo_sched"), {.ranks = 2},
      With("run", {"train.loss_scale=1e9", "train.learning_rate.base=1e12",
                   "train.learning_rate.warmup_steps=1", "train.checkpoint_every=1"}),
      /*expect_ok=*/false);
  EXPECT_EQ(run.exit_code, 78);
  EXPECT_THAT(run.status.message(), HasSubstr("training diverged"));
  const auto tensors = TensorsOf(folder_ / "run");
  for (const auto& [name, bytes] : tensors) {
    for (const float number : Numbers(tensors, name)) ASSERT_TRUE(std::isfinite(number)) << name;
  }
}

TEST_F(MicroBatches, GroupsHaveRatesOfTheirOwn) {
  const std::string config =
      "seed: 3 model { net { layer { name: \"a\" linear { units: 6 } }\n"
      "  layer { name: \"ab\" linear { units: 5 } learning_rate_scale: 0.5 }\n"
      "  layer { name: \"c\" linear { units: 4 } } } }\n"
      "data { synthetic { samples: 32 eval_samples: 4 shape: 8 classes: 4 } }\n"
      "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"] cpu_ops { threads: 1 }\n"
      "train { steps: 1 global_batch: 8 learning_rate { base: 0.125 }";
  const std::string groups =
      " group { parameters: \"a\" learning_rate_scale: 3 }\n"
      " group { parameters: \"ab.w\" learning_rate_scale: 4 }\n"
      " group { parameters: \"c\" learning_rate_scale: 0 }";
  const auto train = [&](const std::string& more, const std::string& name,
                         const std::string& rate) {
    const Training run =
        TrainWithThreads(config + more + " }", 2, With(name, {"train.learning_rate.base=" + rate}));
    EXPECT_TRUE(run.status.ok()) << run.status.message();
    return TensorsOf(folder_ / name);
  };
  const auto before = train("", "before", "0");
  const auto plain = train("", "plain", "0.125");
  const auto scaled = train(groups, "scaled", "0.125");
  // What the layer has is in both.
  const std::vector<std::pair<std::string, float>> factors = {
      {"a.weight", 3}, {"a.bias", 3}, {"ab.weight", 4}, {"ab.bias", 3}, {"c.weight", 0}};
  for (const auto& [name, factor] : factors) {
    const auto was = Numbers(before, name), one = Numbers(plain, name), is = Numbers(scaled, name);
    double moved = 0;
    for (size_t i = 0; i < was.size(); ++i) {
      EXPECT_NEAR(is[i] - was[i], factor * (one[i] - was[i]), 1e-6) << name << " at " << i;
      moved += std::abs(one[i] - was[i]);
    }
    EXPECT_GT(moved, 1e-4) << name;
  }
  const Training refused = TrainWithThreads(config + " group { parameters: \"none\" } }",
                                            {.ranks = 1}, {}, /*expect_ok=*/false);
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.status.message(), AllOf(HasSubstr("train.group"), HasSubstr("'none'")));
}

#ifdef ENGINE_TEST_SERVERS
TEST_F(MicroBatches, ServersUpdateAsRanksDo) {
  for (const std::string sparse : {"false", "true"}) {
    const std::string tied = std::string("model.gpt.tied=") + (sparse == "true" ? "false" : "true");
    const Training expected =
        TrainWithThreads(gpt_, 1, With("expected", {tied, "plugins=tcp,fifo_sched,adamw,cpu_ops"}));
    const Training run = TrainWithThreads(
        gpt_, {.ranks = 2, .servers = 1},
        With("run", {tied, "plugins=zmq_ps,fifo_sched,adamw,cpu_ops", "train.micro_batches=2",
                     "train.loss_scale=16", "train.sparse_pull=" + sparse}));
    ExpectSame(run, expected, "sparse " + sparse);
    ExpectSameTensors(folder_ / "run", folder_ / "expected", 1e-3);
  }
}

TEST_F(MicroBatches, WhatCannotTravelToServersIsRefused) {
  const auto refusal = [&](const std::string& config, const std::vector<std::string>& more) {
    const Training run =
        TrainWithThreads(config, {.ranks = 2, .servers = 1}, With("run", more), false);
    EXPECT_EQ(run.exit_code, 78);
    return std::string(run.status.message());
  };
  std::string served = MlpConfig("zmq_ps", "fifo_sched");
  EXPECT_THAT(refusal(served, {"train.loss_scale=0.5"}), HasSubstr("train.loss_scale"));
  const std::string train = "train { ";
  served.replace(served.find(train), train.size(),
                 train + "group { parameters: \"\" learning_rate_scale: 2 } ");
  EXPECT_THAT(refusal(served, {}), HasSubstr("learning_rate_scale"));
}
#endif

}  // namespace
}  // namespace engine::testing
