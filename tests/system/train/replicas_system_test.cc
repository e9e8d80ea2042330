// Ops that see all ranks, and buffers: any number of ranks trains the model that one rank trains,
// whatever carries it.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/system/train/run_test.h"

namespace engine::test {
namespace {

// Sums of several ranks are rounded elsewhere than those of one, which batch norm and training
// carry on.
constexpr double kReplicaTolerance = 2e-4;

// Two epochs of 31 samples in steps of 15, 15 and 1: fewer in the last than there are ranks.
// No bias stands before a batch norm, which would take all but rounding from its gradient.
// Branches give schedulers a choice, and the frozen layer is a batch norm.
constexpr char kReplicaNet[] =
    "seed: 3 model { net {\n"
    "  layer { to_channels_last {} }\n"
    "  layer { conv2d { channels: 6 kernel: 3 bias: false } }\n"
    "  layer { name: \"bn1\" batch_norm {} } layer { relu {} }\n"
    "  layer { residual { layer { conv2d { channels: 8 kernel: 3 stride: 2 bias: false } }\n"
    "                     layer { batch_norm {} } layer { relu {} }\n"
    "                     layer { conv2d { channels: 8 kernel: 3 bias: false } } layer { "
    "batch_norm {} } }\n"
    "          shortcut { layer { conv2d { channels: 8 kernel: 1 stride: 2 bias: false } }\n"
    "                     layer { batch_norm {} } } }\n"
    "  layer { relu {} } layer { name: \"frozen\" batch_norm { momentum: 0.3 } trainable: false }\n"
    "  layer { relu {} } layer { global_avg_pool {} } layer { linear { units: 4 } }\n"
    "} }\n"
    "data { synthetic { samples: 31 eval_samples: 9 shape: 2 shape: 6 shape: 5 classes: 4 } }\n"
    "train { steps: 6 global_batch: 15 learning_rate { base: 0.05 } evaluate_every: 2 }\n"
    "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"] sgd { momentum: 0.9 }\n"
    "cpu_ops { threads: 1 }\n";

class ReplicasSystem : public RunTest {
 protected:
  // The run of one rank, which the others are compared with.
  Training TrainAlone(const std::string& config) { return Train(config, {1}, "one"); }

  // With `overrides` the members train as one rank did.
  void ExpectEqualsOne(const Training& one, const std::string& config, const Members& members,
                       const std::vector<std::string>& overrides) {
    SCOPED_TRACE(std::to_string(members.ranks) + " ranks" + ::testing::PrintToString(overrides));
    ExpectSameRun(Train(config, members, "several", overrides), one, kReplicaTolerance, "run");
    ExpectNearTensors("several", "one", kReplicaTolerance);
  }
};

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

TEST_F(ReplicasSystem, ARunThatGoesOnHasTheBuffersOfOneThatWasNotInterrupted) {
  for (const int ranks : {1, 2}) {
    const auto tensors = ExpectGoesOnToTheBit(kReplicaNet, ranks, {"train.steps=20"});
    EXPECT_TRUE(tensors.contains("bn1.running_var"));
    EXPECT_FALSE(tensors.contains("optimizer/momentum/bn1.running_var"));
  }
}

#ifdef ENGINE_TEST_ZMQ_PS
TEST_F(ReplicasSystem, ServersOfAnyKindEqualOneRank) {
  const Training one = TrainAlone(kReplicaNet);
  for (const std::string& scheduler : kSchedulers) {
    const std::string plugins = Plugins("zmq_ps", scheduler);
    ExpectEqualsOne(one, kReplicaNet, {3, 0}, {plugins});  // servers in the ranks
    ExpectEqualsOne(one, kReplicaNet, {2, 1}, {plugins});
    ExpectEqualsOne(one, kReplicaNet, {3, 2}, {plugins, "zmq_ps.update=workers"});
  }
}

TEST_F(ReplicasSystem, WhatCannotSeeAllRanksIsRefused) {
  const Training pace = TrainWithThreads(kReplicaNet, {.ranks = 2},
                                         {Plugins("zmq_ps", "fifo_sched"), "zmq_ps.update=async"},
                                         /*expect_ok=*/false);
  EXPECT_EQ(pace.exit_code, 78);
  EXPECT_THAT(pace.status.message(),
              AllOf(HasSubstr("layer 'bn1' (batch_norm)"), HasSubstr("no rank waits for another")));
}

#endif

}  // namespace
}  // namespace engine::test
