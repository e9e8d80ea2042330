// One run, whatever carries it: the number of ranks, threads or processes, and the scheduler change
// how fast a model is trained and not what comes out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/probe_process.h"
#include "tests/system/train/run_test.h"

namespace engine::test {
namespace {

class Parity : public RunTest {
 protected:
  // Trains in processes of the real binary; metrics are in `name`.jsonl.
  void TrainWithProcesses(const std::string& config, int ranks, const std::string& name,
                          std::vector<std::string> more) {
    more.insert(more.begin(), {"run", folder_.Write("run.pbtxt", config), "-q", "--force", "-n",
                               std::to_string(ranks), "--set", "output.checkpoint=" + name, "--set",
                               "output.metrics=" + name + ".jsonl"});
    const Outcome outcome = Engine(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
};

TEST_F(Parity, OneToFourRanksSeeTheSameLosses) {
  for (const std::string& config : {std::string(kMlp), Gpt()}) {
    const Training one = TrainWithThreads(config, 1);
    ASSERT_EQ(one.losses.size(), 20u);
    ASSERT_EQ(one.evaluations.size(), 1u);
    for (int ranks = 2; ranks <= 4; ++ranks) {
      const std::string what = std::to_string(ranks) + " ranks";
      const Training several = TrainWithThreads(config, ranks);
      ExpectSameRun(several, one, kRounding, what);
      ASSERT_EQ(several.evaluations.size(), 1u) << what;
      EXPECT_EQ(several.evaluations[0].metrics[0].value, one.evaluations[0].metrics[0].value)
          << what;
    }
  }
}

TEST_F(Parity, WithoutCommunicationOneRankTrainsToTheSameBits) {
  Train(kMlp, {1}, "tcp");
  TrainWithProcesses(kMlp, 1, "null", {"--plugins", "null"});
  EXPECT_EQ(Tensors("null"), Tensors("tcp"));
}

TEST_F(Parity, ThreadsAndProcessesFifoAndPriorityGiveTheSameBitsOnTwoRanks) {
  for (const std::string& config : {std::string(kMlp), Gpt()}) {
    const Training threads = Train(config, {2}, "threads");
    const auto expected = Tensors("threads");
    EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), [](const auto& tensor) {
      return tensor.first.starts_with("optimizer/");
    })) << "the comparison leaves out the optimizer's state";
    for (const std::string scheduler : {"fifo_sched", "priority_sched"}) {
      // Gradients that travel one by one, and as they are.
      for (const char* fuse : {".fuse_bytes=0", ".fuse_bytes=65536"}) {
        SCOPED_TRACE(config.substr(0, 22) + scheduler + fuse);
        TrainWithProcesses(config, 2, "processes",
                           {"--plugins", scheduler, "--set", scheduler + fuse});
        EXPECT_EQ(Tensors("processes"), expected);
        EXPECT_EQ(LossesOf(folder_ / "processes.jsonl"), threads.losses);
      }
    }
  }
}

#ifdef ENGINE_TEST_GLOO
// A sum of two has one order, whoever adds it up.
TEST_F(Parity, GlooTrainsTwoRanksToTheBitsOfTcp) {
  for (const std::string& sharded : {Sharded(false), Sharded()}) {
    Train(kMlp, {2}, "tcp", {sharded});
    TrainWithProcesses(kMlp, 2, "gloo", {"--plugins", "gloo", "--set", sharded});
    EXPECT_EQ(Tensors("gloo"), Tensors("tcp")) << sharded;
  }
}
#endif

#ifdef ENGINE_TEST_MPIRUN
// Ranks add up in rank order, whoever starts them. As root Open MPI wants to be asked twice.
TEST_F(Parity, MpiTrainsThreeProcessesOfMpirunToTheBitsOfTcp) {
  const Training expected = Train(kMlp, {3}, "tcp");
  ProbeProcess mpirun({ENGINE_TEST_MPIRUN, "--oversubscribe", "-n", "3", ENGINE_TEST_PROGRAM, "run",
                       folder_.Write("run.pbtxt", kMlp), "-q", "--plugins", "mpi", "--set",
                       "output.checkpoint=" + (folder_ / "mpi"), "--set",
                       "output.metrics=" + (folder_ / "mpi.jsonl")},
                      {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  ASSERT_EQ(mpirun.Wait(), 0) << mpirun.output();
  EXPECT_EQ(Tensors("mpi"), Tensors("tcp"));
  EXPECT_EQ(LossesOf(folder_ / "mpi.jsonl"), expected.losses);
}

TEST_F(Parity, MpiRefusesRanksThatMpirunHasNotStarted) {
  const std::string config = folder_.Write("run.pbtxt", kMlp);
  for (const char* ranks : {"-q", "--threads"}) {
    const Outcome outcome = Engine({"run", config, "-n", "2", ranks, "--plugins", "mpi"});
    EXPECT_EQ(outcome.exit_code, 78) << outcome.err;
    EXPECT_THAT(outcome.err, ::testing::HasSubstr("'mpirun -n 2 engine run ...'"));
  }
}
#endif

}  // namespace
}  // namespace engine::test
