// Training with parameters at servers, with the real plugins: ranks and servers are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "tests/support/training.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Plugins(const std::string& communicator, const std::string& scheduler,
                    const std::string& optimizer, const char* more = "") {
  std::ostringstream text;
  text << "plugins: [\"" << communicator << "\", \"" << scheduler << "\", \"" << optimizer
       << "\", \"cpu_ops\"" << more << "]\n";
  return text.str();
}

std::string Mlp(const std::string& plugins) {
  std::string text = R"(
    seed: 3
    model { mlp { hidden: 64 hidden: 32 } }
    data { synthetic { samples: 400 eval_samples: 64 } }
    train { steps: 40 global_batch: 48 learning_rate { base: 0.01 } }
  )";
  return text.append(plugins);
}

class ServedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              std::string("engine_served_").append(std::to_string(getpid()));
    std::filesystem::create_directories(folder_ / "text");
    std::ofstream text(folder_ / "text" / "a.txt");
    for (int i = 0; i < 4000; ++i) text << static_cast<char>('a' + (i * i + i / 7) % 23);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name) const { return (folder_ / name).string(); }
  std::string Output(const std::string& name) const {
    return std::string("output.checkpoint=").append(File(name));
  }

  // A token table that the head does not share, so that rows of it can travel alone.
  std::string Gpt(const std::string& plugins) const {
    std::ostringstream text;
    text << R"(
      seed: 5
      model { gpt { layers: 1 width: 32 heads: 2 tied: false } }
      train { steps: 20 global_batch: 6 learning_rate { base: 0.003 } evaluate_every: 10 }
      data { text { context: 16 path: ")"
         << File("text") << "\" } }\n"
         << plugins;
    return text.str();
  }

  std::filesystem::path folder_;
};

TEST_F(ServedTest, SyncIsEqualBitForBitToAllReduceWithTwoRanks) {
  for (const std::string optimizer : {"sgd", "adamw"}) {
    const Training expected =
        TrainWithThreads(Mlp(Plugins("tcp", "priority_sched", optimizer)), 2, {Output("tcp")});
    ASSERT_TRUE(expected.status.ok()) << expected.status.message();
    const auto tensors = TensorsOf(File("tcp"));
    ASSERT_FALSE(tensors.empty());
    for (const std::string scheduler :
         {"sequential_sched", "fifo_sched", "priority_sched", "dear_sched"}) {
      const Members members{.ranks = 2, .servers = scheduler == "fifo_sched" ? 0 : 2};
      const Training served =
          TrainWithThreads(Mlp(Plugins("zmq_ps", scheduler, optimizer)), members,
                           {"zmq_ps.update=sync", "zmq_ps.slice_bytes=4096", Output("served")});
      ASSERT_TRUE(served.status.ok()) << scheduler << ": " << served.status.message();
      EXPECT_EQ(served.losses, expected.losses) << scheduler << " " << optimizer;
      EXPECT_EQ(TensorsOf(File("served")), tensors) << scheduler << " " << optimizer;
    }
  }
}

TEST_F(ServedTest, FourRanksDifferByRoundingOnly) {
  const Training expected = TrainWithThreads(Mlp(Plugins("tcp", "fifo_sched", "adamw")), 4);
  const Training served =
      TrainWithThreads(Mlp(Plugins("zmq_ps", "priority_sched", "adamw")), {4, 2}, {});
  ASSERT_TRUE(served.status.ok()) << served.status.message();
  ExpectSameLosses(served.losses, expected.losses, 1e-4, "four ranks");
}

TEST_F(ServedTest, ServersMayOnlyAddUp) {
  const Training expected = TrainWithThreads(Mlp(Plugins("tcp", "fifo_sched", "adamw")), 2);
  const Training added =
      TrainWithThreads(Mlp(Plugins("zmq_ps", "priority_sched", "adamw", ", \"clip_norm\"")), {2, 1},
                       {"zmq_ps.update=workers", "clip_norm.max_norm=1e30"});
  ASSERT_TRUE(added.status.ok()) << added.status.message();
  ExpectSameLosses(added.losses, expected.losses, 1e-5, "sums only");
}

TEST_F(ServedTest, RowsThatABatchDoesNotReadNeedNotTravel) {
  const std::string text = Gpt(Plugins("zmq_ps", "priority_sched", "adamw"));
  const Training dense = TrainWithThreads(text, {2, 2}, {Output("dense")});
  ASSERT_TRUE(dense.status.ok()) << dense.status.message();
  const Training sparse =
      TrainWithThreads(text, {2, 2}, {Output("sparse"), "train.sparse_pull=true"});
  ASSERT_TRUE(sparse.status.ok()) << sparse.status.message();
  EXPECT_EQ(sparse.losses, dense.losses);
  ASSERT_EQ(sparse.evaluations.size(), dense.evaluations.size());
  for (size_t i = 0; i < dense.evaluations.size(); ++i) {
    EXPECT_EQ(sparse.evaluations[i].loss, dense.evaluations[i].loss);
  }
  EXPECT_EQ(TensorsOf(File("sparse")), TensorsOf(File("dense")));
}

TEST_F(ServedTest, GoesOnFromACheckpointAsIfItHadNotStopped) {
  const std::string text = Mlp(Plugins("zmq_ps", "priority_sched", "adamw"));
  const Training whole = TrainWithThreads(text, {2, 2}, {Output("whole")});
  ASSERT_TRUE(whole.status.ok()) << whole.status.message();
  const Training first = TrainWithThreads(text, {2, 2}, {Output("part"), "train.steps=17"});
  ASSERT_TRUE(first.status.ok()) << first.status.message();
  const Training second =
      TrainWithThreads(text, {.ranks = 2, .servers = 2, .resume = File("part")}, {Output("part")});
  ASSERT_TRUE(second.status.ok()) << second.status.message();
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), second.losses.begin(), second.losses.end());
  EXPECT_EQ(losses, whole.losses);
  EXPECT_EQ(TensorsOf(File("part")), TensorsOf(File("whole")));
}

TEST_F(ServedTest, AsynchronousRanksLearnToo) {
  for (const std::string update : {"async", "bounded"}) {
    const Training training = TrainWithThreads(
        Mlp(Plugins("zmq_ps", "priority_sched", "adamw")), {3, 2},
        {std::string("zmq_ps.update=").append(update), "train.steps=200", Output(update)});
    ASSERT_TRUE(training.status.ok()) << update << ": " << training.status.message();
    ASSERT_EQ(training.losses.size(), 200u);
    ASSERT_EQ(training.evaluations.size(), 1u);
    EXPECT_EQ(training.evaluations[0].targets, 64);
    // Of the training data: held-out ones of so small a set are not learned.
    const double last = std::accumulate(training.losses.end() - 20, training.losses.end(), 0.0);
    EXPECT_LT(last / 20, 0.2 * training.losses[0]) << update;
    EXPECT_FALSE(TensorsOf(File(update)).empty());
  }
}

TEST_F(ServedTest, WhatNeedsTheSumsIsRefused) {
  const Training clipped =
      TrainWithThreads(Mlp(Plugins("zmq_ps", "priority_sched", "adamw", ", \"clip_norm\"")), {2, 1},
                       {"clip_norm.max_norm=1"},
                       /*expect_ok=*/false);
  EXPECT_EQ(clipped.exit_code, 78);
  EXPECT_THAT(clipped.status.message(), AllOf(HasSubstr("'clip_norm'"), HasSubstr("update")));
}

TEST_F(ServedTest, ACommunicatorWithoutServersSaysSo) {
  const Training training = TrainWithThreads(Mlp(Plugins("tcp", "priority_sched", "adamw")), {2, 1},
                                             {}, /*expect_ok=*/false);
  EXPECT_EQ(training.exit_code, 78);
  EXPECT_THAT(training.status.message(), AllOf(HasSubstr("'tcp'"), HasSubstr("--servers")));
}

}  // namespace
}  // namespace engine::testing
