// Micro-batches, loss scale and rates of single parameters in whole runs. That such runs go on from
// their checkpoints: resume_system_test.cc.

#include <gtest/gtest.h>

#include <string>

#include "tests/support/matchers.h"
#include "tests/system/train/run_test.h"

namespace engine::test {
namespace {

using MicroBatches = RunTest;

std::string Parts(const std::string& parts) {
  return "train.micro_batches=" + parts;
}

TEST_F(MicroBatches, LossesAreThoseOfTheWholeBatchUnderEverySchedulerOnAnyRanks) {
  const Training expected = Train(kMlp, {1}, "expected");
  for (const std::string& scheduler : kSchedulers) {
    for (const std::string communicator : {"tcp", "shm"}) {
      for (const bool sharded : {false, true}) {
        const std::string plugins = Plugins(communicator, scheduler);
        const std::string parts = Parts(communicator == "tcp" ? "2" : "4");
        const Training run = Train(kMlp, {2}, "run", {plugins, parts, Sharded(sharded)});
        ExpectSameRun(run, expected, kRounding, plugins + " " + Sharded(sharded));
        ExpectNearTensors("run", "expected");
      }
    }
  }
  for (const std::string parts : {"2", "4", "20"}) {
    const Training run = TrainWithThreads(kMlp, 1, {Parts(parts)});
    ExpectSameRun(run, expected, kRounding, "one rank, parts " + parts);
  }
}

TEST_F(MicroBatches, AModelWhoseParametersHaveSeveralUsesTrainsAsWithTheWholeBatch) {
  const Training expected = TrainWithThreads(Gpt(), 1);
  for (const int ranks : {1, 2}) {
    for (const std::string parts : {"2", "3", "4"}) {
      const Training run = TrainWithThreads(Gpt(), ranks, {Parts(parts)});
      ExpectSameRun(run, expected, kRounding, std::to_string(ranks) + " ranks, parts " + parts);
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
    ExpectSameRun(TrainWithThreads(dropout, ranks, {Parts("3")}), expected, kRounding, "dropout");
  }
  const std::string norm = net("layer { batch_norm {} }");
  const Training first = TrainWithThreads(norm, 2, {Parts("4")});
  EXPECT_EQ(first.losses, TrainWithThreads(norm, 2, {Parts("4")}).losses);
  ASSERT_EQ(first.losses.size(), 12u);
  ASSERT_EQ(first.buffers.size(), 2u);
  EXPECT_EQ(first.buffers[0], first.buffers[1]);
  EXPECT_NE(first.losses, TrainWithThreads(norm, 2).losses) << "statistics are of a micro-batch";
}

#ifdef ENGINE_TEST_ZMQ_PS
TEST_F(MicroBatches, ServersUpdateAsRanksDo) {
  for (const bool sparse : {false, true}) {
    const std::string gpt = Gpt(sparse ? "tied: false" : "");
    const Training expected = Train(gpt, {1}, "expected", {Plugins("tcp", "fifo_sched", "adamw")});
    const Training run =
        Train(gpt, {.ranks = 2, .servers = 1}, "run",
              {Plugins("zmq_ps", "fifo_sched", "adamw"), Parts("2"), "train.loss_scale=16",
               std::string("train.sparse_pull=") + (sparse ? "true" : "false")});
    ExpectSameRun(run, expected, kRounding, sparse ? "sparse" : "dense");
    ExpectNearTensors("run", "expected", 1e-3);
  }
}

TEST_F(MicroBatches, WhatCannotTravelToServersIsRefused) {
  const auto refusal = [&](const std::string& config, const std::string& more) {
    const Training run = TrainWithThreads(config, {.ranks = 2, .servers = 1},
                                          {Plugins("zmq_ps", "fifo_sched"), more}, false);
    EXPECT_EQ(run.exit_code, 78);
    return std::string(run.status.message());
  };
  EXPECT_THAT(refusal(kMlp, "train.loss_scale=0.5"), HasSubstr("train.loss_scale"));
  EXPECT_THAT(refusal(kMlp, "train.loss_scaling.mode=dynamic"), HasSubstr("hook 'loss_scaling'"));
  std::string grouped = kMlp;
  grouped.insert(grouped.find("steps:"), "group { parameters: \"\" learning_rate_scale: 2 } ");
  EXPECT_THAT(refusal(grouped, "seed=3"), HasSubstr("learning_rate_scale"));
}
#endif

}  // namespace
}  // namespace engine::test
