// One run, whatever carries it: the number of ranks, threads or processes, and the scheduler change
// how fast a model is trained and not what comes out.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"

namespace engine::testing {
namespace {

// Sums of several ranks are rounded elsewhere than those of one: 2^-23 per addition, which training
// carries on.
constexpr double kTolerance = 1e-5;

// 7 steps of 15 samples over an epoch of 50: its last step has 5, and no step divides evenly.
constexpr char kMlp[] =
    "seed: 3 model { mlp { hidden: [24, 16] } }\n"
    "data { synthetic { samples: 50 eval_samples: 21 shape: 8 classes: 4 } }\n"
    "train { steps: 7 global_batch: 15 learning_rate { base: 0.1 } }\n"
    "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"] sgd { momentum: 0.9 }\n"
    // Few ranks get a processor of their own here.
    "cpu_ops { threads: 1 }\n";

std::string GptConfig(const std::string& text_path) {
  return "seed: 3 model { gpt { layers: 2 width: 16 heads: 2 } }\n"
         "data { text { path: \"" +
         text_path +
         "\" context: 8 } }\n"
         "train { steps: 6 global_batch: 6 learning_rate { base: 0.003 } }\n"
         "plugins: [\"tcp\", \"priority_sched\", \"adamw\", \"cpu_ops\", \"clip_norm\"]\n"
         "clip_norm { max_norm: 0.5 } cpu_ops { threads: 1 }\n";
}

class Parity : public ::testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(7);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "etaoin shrdlu\n"[random() % 14];
    gpt_ = GptConfig(folder_.Write("text.txt", text));
    folder_.Write("mlp.pbtxt", kMlp);
    folder_.Write("gpt.pbtxt", gpt_);
  }

  // Trains in processes of the real binary; the checkpoint is then at `name`.
  void TrainWithProcesses(const std::string& config, int ranks, const std::string& name,
                          std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"run",
                                          config,
                                          "-q",
                                          "-n",
                                          std::to_string(ranks),
                                          "--set",
                                          "output.checkpoint=" + name,
                                          "--set",
                                          "output.metrics=" + name + ".jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = RunEngine(folder_.path().native(), arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  std::string CheckpointAt(const std::string& name) const {
    return "output.checkpoint=" + (folder_ / name);
  }

  TempFolder folder_;
  std::string gpt_;
};

TEST_F(Parity, OneToFourRanksSeeTheSameLosses) {
  for (const std::string& config : {std::string(kMlp), gpt_}) {
    const Training one = TrainWithThreads(config, 1, {CheckpointAt("1")});
    ASSERT_GE(one.losses.size(), 6u);
    ASSERT_EQ(one.evaluations.size(), 1u);
    for (int ranks = 2; ranks <= 4; ++ranks) {
      const std::string what = std::to_string(ranks) + " ranks";
      const Training several = TrainWithThreads(config, ranks, {CheckpointAt("n")});
      ExpectSameLosses(several.losses, one.losses, kTolerance, what);
      EXPECT_EQ(several.samples, one.samples) << what;
      ASSERT_EQ(several.evaluations.size(), 1u) << what;
      EXPECT_EQ(several.evaluations[0].targets, one.evaluations[0].targets) << what;
      EXPECT_EQ(several.evaluations[0].accuracy, one.evaluations[0].accuracy) << what;
      EXPECT_NEAR(several.evaluations[0].loss, one.evaluations[0].loss,
                  kTolerance * one.evaluations[0].loss)
          << what;
    }
  }
}

TEST_F(Parity, WithoutCommunicationOneRankTrainsToTheSameBits) {
  TrainWithThreads(kMlp, 1, {CheckpointAt("tcp")});
  TrainWithProcesses("mlp.pbtxt", 1, "null", {"--plugins", "null"});
  EXPECT_EQ(TensorsOf(folder_ / "null"), TensorsOf(folder_ / "tcp"));
}

TEST_F(Parity, ThreadsAndProcessesFifoAndPriorityGiveTheSameBitsOnTwoRanks) {
  for (const std::string name : {"mlp", "gpt"}) {
    const std::string& config = name == "mlp" ? kMlp : gpt_;
    const Training threads = TrainWithThreads(config, 2, {CheckpointAt("threads")});
    const auto expected = TensorsOf(folder_ / "threads");
    EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), [](const auto& tensor) {
      return tensor.first.starts_with("optimizer/");
    })) << "the comparison leaves out the optimizer's state";
    for (const char* scheduler : {"fifo_sched", "priority_sched"}) {
      // Gradients that travel one by one, and as they are.
      for (const char* fuse : {"0", "65536"}) {
        TrainWithProcesses(
            name + ".pbtxt", 2, "processes",
            {"--plugins", scheduler, "--set", std::string(scheduler) + ".fuse_bytes=" + fuse});
        EXPECT_EQ(TensorsOf(folder_ / "processes"), expected) << name << " " << scheduler;
        EXPECT_EQ(LossesOf(folder_ / "processes.jsonl"), threads.losses)
            << name << " " << scheduler;
      }
    }
  }
}

#ifdef ENGINE_TEST_GLOO
// A sum of two has one order, whoever adds it up.
TEST_F(Parity, GlooTrainsTwoRanksToTheBitsOfTcp) {
  for (const char* shard : {"false", "true"}) {
    const std::string sharded = std::string("train.shard_optimizer=") + shard;
    TrainWithThreads(kMlp, 2, {CheckpointAt("tcp"), sharded});
    TrainWithProcesses("mlp.pbtxt", 2, "gloo", {"--plugins", "gloo", "--set", sharded});
    EXPECT_EQ(TensorsOf(folder_ / "gloo"), TensorsOf(folder_ / "tcp")) << sharded;
  }
}
#endif

TEST_F(Parity, TheSameRunTwiceGivesTheSameBits) {
  for (const char* name : {"first", "second"}) TrainWithThreads(gpt_, 3, {CheckpointAt(name)});
  EXPECT_EQ(TensorsOf(folder_ / "first"), TensorsOf(folder_ / "second"));
}

TEST_F(Parity, SevenSamplesOnEightRanksEqualOneProcess) {
  const std::vector<std::string> ragged = {"data.synthetic.samples=7", "train.global_batch=8",
                                           "train.epochs=3"};
  auto overrides = [&](const char* name) {
    std::vector<std::string> list = ragged;
    list.push_back(CheckpointAt(name));
    return list;
  };
  const Training one = TrainWithThreads(kMlp, 1, overrides("one"));
  const Training eight = TrainWithThreads(kMlp, 8, overrides("eight"));
  EXPECT_EQ(one.samples, (std::vector<int64_t>{7, 7, 7}));
  EXPECT_EQ(eight.samples, one.samples);
  ExpectSameLosses(eight.losses, one.losses, kTolerance, "8 ranks");
  ExpectSameTensors(folder_ / "eight", folder_ / "one", kTolerance);
}

TEST_F(Parity, ARaggedLastBatchLeavesSomeRanksWithoutSamples) {
  // 10 samples in steps of 8: the second step has 2, on 4 ranks.
  const auto overrides = [&](const char* name) {
    return std::vector<std::string>{"data.synthetic.samples=10", "train.global_batch=8",
                                    "train.epochs=2", CheckpointAt(name)};
  };
  const Training one = TrainWithThreads(kMlp, 1, overrides("one"));
  const Training four = TrainWithThreads(kMlp, 4, overrides("four"));
  EXPECT_EQ(one.samples, (std::vector<int64_t>{8, 2, 8, 2}));
  EXPECT_EQ(four.samples, one.samples);
  ExpectSameLosses(four.losses, one.losses, kTolerance, "4 ranks");
  ExpectSameTensors(folder_ / "four", folder_ / "one", kTolerance);
}

}  // namespace
}  // namespace engine::testing
