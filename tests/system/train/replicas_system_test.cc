// Ops that see all ranks, buffers, and random numbers by position: any number of ranks trains the
// model that one rank trains, whatever carries it.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/system/train/replica_net.h"

namespace engine::testing {
namespace {

using ReplicasSystem = ReplicaRuns;

TEST_F(ReplicasSystem, RanksAsThreadsEqualOneRankUnderEveryScheduler) {
  const Training one = TrainAlone(kReplicaNet);
  EXPECT_EQ(one.samples, (std::vector<int64_t>{15, 15, 1, 15, 15, 1}));
  for (const char* communicator : {"tcp", "shm"}) {
    for (const std::string& scheduler : kSchedulers) {
      for (const int ranks : {2, 3}) {
        for (const char* shard : {"false", "true"}) {
          const std::string what = std::string(communicator) + " " + scheduler + ", " +
                                   std::to_string(ranks) + " ranks, sharded " + shard;
          const Training run = TrainWithThreads(
              NetWith(communicator, scheduler), ranks,
              {CheckpointAt("several"), std::string("train.shard_optimizer=").append(shard)});
          ExpectSameRun(run, "several", one, what);
        }
      }
    }
  }
}

TEST_F(ReplicasSystem, RanksAsProcessesEqualOneRank) {
  const Training one = TrainAlone(kReplicaNet);
  for (const char* communicator : {"tcp", "shm"}) {
    folder_.Write("net.pbtxt", NetWith(communicator, "priority_sched"));
    for (const char* ranks : {"2", "3"}) {
      const Outcome outcome = RunEngine(
          folder_.path().native(), {"run", "net.pbtxt", "-q", "-n", ranks, "--set",
                                    "output.checkpoint=several", "--set", "output.metrics=jsonl"});
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      ExpectSameLosses(LossesOf(folder_ / "jsonl"), one.losses, kReplicaTolerance, communicator);
      ExpectSameTensors(folder_ / "several", folder_ / "one", kReplicaTolerance);
    }
  }
}

TEST_F(ReplicasSystem, BuffersAreTheSameOnAllRanksWithoutBeingSent) {
  const Training run =
      TrainWithThreads(kReplicaNet, 3, {"train.evaluate_every=-1", "train.shard_optimizer=true"});
  ASSERT_EQ(run.buffers.size(), 3u);
  ASSERT_FALSE(run.buffers[0].empty());
  EXPECT_EQ(run.buffers[1], run.buffers[0]);
  EXPECT_EQ(run.buffers[2], run.buffers[0]);
  // Also in the layer that is frozen.
  const Training one = TrainAlone(kReplicaNet);
  const auto tensors = TensorsOf(folder_ / "one");
  const std::vector<uint8_t>& statistics = tensors.at("frozen.running_mean");
  EXPECT_NE(statistics, std::vector<uint8_t>(statistics.size(), 0));
  const std::vector<uint8_t>& bias = tensors.at("frozen.bias");
  EXPECT_EQ(bias, std::vector<uint8_t>(bias.size(), 0));
}

TEST_F(ReplicasSystem, BatchNormOfEachRankTrainsAndIsEvaluatedAsRankZerosIs) {
  std::string local = kReplicaNet;
  for (size_t at = 0; (at = local.find("batch_norm {", at)) != std::string::npos; at += 12) {
    local.insert(at + 12, " sync: false ");
  }
  const Training run = TrainWithThreads(local, 2, {CheckpointAt("local")});
  ASSERT_TRUE(run.status.ok()) << run.status.message();
  ASSERT_EQ(run.buffers.size(), 2u);
  EXPECT_EQ(run.buffers[1], run.buffers[0]) << "the last evaluation was with other statistics";
  const Training unshared = TrainWithThreads(local, 2, {"train.evaluate_every=-1"});
  ASSERT_EQ(unshared.buffers.size(), 2u);
  EXPECT_NE(unshared.buffers[1], unshared.buffers[0]) << "the test compares nothing";
  EXPECT_EQ(unshared.buffers[0], run.buffers[0]) << "sharing changes what is trained";
}

TEST_F(ReplicasSystem, DropoutDoesNotDependOnTheNumberOfRanks) {
  const std::string config =
      "seed: 9 model { net { layer { linear { units: 40 } } layer { relu {} }\n"
      "  layer { dropout { rate: 0.4 } } layer { linear { units: 30 } }\n"
      "  layer { dropout { rate: 0.2 } } layer { linear { units: 4 } } } }\n"
      "data { synthetic { samples: 31 eval_samples: 9 classes: 4 } }\n"
      "train { steps: 9 global_batch: 15 learning_rate { base: 0.1 } }\n"
      "plugins: [\"shm\", \"fifo_sched\", \"sgd\", \"cpu_ops\"] cpu_ops { threads: 1 }\n";
  const Training one = TrainAlone(config);
  const Training other_seed = TrainWithThreads(config, 1, {"seed=10"});
  EXPECT_NE(other_seed.losses, one.losses);
  for (const int ranks : {2, 3}) {
    const Training run = TrainWithThreads(config, ranks, {CheckpointAt("several")});
    ExpectSameRun(run, "several", one, std::to_string(ranks) + " ranks");
  }
}

TEST_F(ReplicasSystem, ARunThatGoesOnHasTheBuffersOfOneThatWasNotInterrupted) {
  for (const int ranks : {1, 2}) {
    const std::vector<std::string> steps = {"train.steps=20", "train.checkpoint_every=10"};
    const auto with = [&](const std::string& name) {
      std::vector<std::string> all = steps;
      all.push_back(CheckpointAt(name));
      return all;
    };
    TrainWithThreads(kReplicaNet, ranks, with("whole"));
    const Training killed = TrainWithThreads(kReplicaNet, {.ranks = ranks, .dies_after = 15},
                                             with("parts"), /*expect_ok=*/false);
    ASSERT_EQ(killed.losses.size(), 15u);
    TrainWithThreads(kReplicaNet, {.ranks = ranks, .resume = folder_ / "parts"}, with("parts"));
    const auto whole = TensorsOf(folder_ / "whole");
    ASSERT_TRUE(whole.contains("bn1.running_var"));
    EXPECT_FALSE(whole.contains("optimizer/momentum/bn1.running_var"));
    EXPECT_EQ(TensorsOf(folder_ / "parts"), whole) << ranks << " ranks";
  }
}

TEST_F(ReplicasSystem, WithoutCommunicationRanksTrainOnTheirOwn) {
  const Training run = TrainWithThreads(NetWith("null", "fifo_sched"), 2, {});
  EXPECT_TRUE(run.status.ok()) << run.status.message();
  EXPECT_EQ(run.losses.size(), 6u);
}

}  // namespace
}  // namespace engine::testing
