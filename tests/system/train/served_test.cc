// Training with parameters at servers, with the real plugins: ranks and servers are threads.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/system/train/run_test.h"

namespace engine::test {
namespace {

using ServedTest = RunTest;

constexpr char kLayers[] =
    "seed: 3 model { mlp { hidden: 64 hidden: 32 } }\n"
    "data { synthetic { samples: 400 eval_samples: 64 } }\n"
    "train { steps: 40 global_batch: 48 learning_rate { base: 0.01 } }\n";
const std::string kServed = Plugins("zmq_ps", "priority_sched", "adamw");

TEST_F(ServedTest, SyncIsEqualBitForBitToAllReduceWithTwoRanks) {
  for (const std::string optimizer : {"sgd", "adamw"}) {
    const Training expected =
        Train(kLayers, {2}, "tcp", {Plugins("tcp", "priority_sched", optimizer)});
    for (const std::string& scheduler : kSchedulers) {
      const Members members{.ranks = 2, .servers = scheduler == "fifo_sched" ? 0 : 2};
      const Training served = Train(kLayers, members, "served",
                                    {Plugins("zmq_ps", scheduler, optimizer), "zmq_ps.update=sync",
                                     "zmq_ps.slice_bytes=4096"});
      EXPECT_EQ(served.losses, expected.losses) << scheduler << " " << optimizer;
      EXPECT_EQ(Tensors("served"), Tensors("tcp")) << scheduler << " " << optimizer;
    }
  }
}

TEST_F(ServedTest, GoesOnFromACheckpointAsIfItHadNotStopped) {
  const Training whole = Train(kLayers, {2, 2}, "whole", {kServed});
  const Training first = Train(kLayers, {2, 2}, "part", {kServed, "train.steps=17"});
  const Training second =
      Train(kLayers, {.ranks = 2, .servers = 2, .resume = folder_ / "part"}, "part", {kServed});
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), second.losses.begin(), second.losses.end());
  EXPECT_EQ(losses, whole.losses);
  EXPECT_EQ(Tensors("part"), Tensors("whole"));
}

// Which gradients are stale depends on the timing. At three times the rate, once the variances that
// AdamW divides by are tiny, one stale gradient may throw the loss from 0.003 to 1.
TEST_F(ServedTest, AsynchronousRanksLearnToo) {
  for (const std::string update : {"async", "bounded"}) {
    const Training training = Train(
        kLayers, {3, 2}, update,
        {kServed, "zmq_ps.update=" + update, "train.steps=200", "train.learning_rate.base=0.003"});
    ASSERT_EQ(training.losses.size(), 200u);
    ASSERT_EQ(training.evaluations.size(), 1u);
    EXPECT_EQ(training.evaluations[0].targets, 64);
    // Of the training data: held-out ones of so small a set are not learned.
    const double last = std::accumulate(training.losses.end() - 20, training.losses.end(), 0.0);
    EXPECT_LT(last / 20, 0.2 * training.losses[0]) << update;
    EXPECT_FALSE(Tensors(update).empty());
  }
}

}  // namespace
}  // namespace engine::test
