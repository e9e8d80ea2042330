// Ops that see all ranks, buffers, and random numbers by position: any number of ranks trains the
// model that one rank trains, whatever carries it.

#include <gtest/gtest.h>

#include <string>
#include <vector>

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
        for (const bool sharded : {false, true}) {
          ExpectEqualsOne(one, kReplicaNet, {ranks},
                          {Plugins(communicator, scheduler), Sharded(sharded)});
        }
      }
    }
  }
}

TEST_F(ReplicasSystem, RanksAsProcessesEqualOneRank) {
  const Training one = TrainAlone(kReplicaNet);
  folder_.Write("net.pbtxt", kReplicaNet);
  for (const char* plugins : {"tcp,priority_sched", "shm,priority_sched"}) {
    for (const char* ranks : {"2", "3"}) {
      const Outcome outcome =
          Engine({"run", "net.pbtxt", "-q", "-n", ranks, "--plugins", plugins, "--set",
                  "output.checkpoint=several", "--set", "output.metrics=jsonl"});
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      ExpectSameLosses(LossesOf(folder_ / "jsonl"), one.losses, kReplicaTolerance, plugins);
      ExpectNearTensors("several", "one", kReplicaTolerance);
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
  const auto tensors = Tensors("one");
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
  const Training run = TrainWithThreads(local, 2);
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
  EXPECT_NE(TrainWithThreads(config, 1, {"seed=10"}).losses, one.losses);
  for (const int ranks : {2, 3}) ExpectEqualsOne(one, config, {ranks}, {});
}

TEST_F(ReplicasSystem, ARunThatGoesOnHasTheBuffersOfOneThatWasNotInterrupted) {
  const std::vector<std::string> steps = {"train.steps=20"};
  for (const int ranks : {1, 2}) {
    Train(kReplicaNet, {ranks}, "whole", steps);
    Interrupt(kReplicaNet, ranks, "parts", steps);
    GoOn(kReplicaNet, ranks, "parts", steps);
    const auto whole = Tensors("whole");
    ASSERT_TRUE(whole.contains("bn1.running_var"));
    EXPECT_FALSE(whole.contains("optimizer/momentum/bn1.running_var"));
    EXPECT_EQ(Tensors("parts"), whole) << ranks << " ranks";
  }
}

TEST_F(ReplicasSystem, WithoutCommunicationRanksTrainOnTheirOwn) {
  const Training run = TrainWithThreads(kReplicaNet, 2, {Plugins("null", "fifo_sched")});
  EXPECT_EQ(run.losses.size(), 6u);
}

}  // namespace
}  // namespace engine::testing
