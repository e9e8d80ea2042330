// Whole runs with hier over emulated GPUs, of four ranks that are two hosts, or three that are two and
// one: what comes out is what nccl alone gives.
#include "tests/emulated_cuda/engine_runs.h"
#include "tests/support/training.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Sums are added up host by host, which rounds otherwise.
constexpr double kTolerance = 2e-5;

class HierRun : public EngineRuns {
 protected:
  void SetUp() override {
    folder_.Write(
        "run.pbtxt",
        "seed: 3 model { mlp { hidden: [24, 15] } }\n"
        "data { synthetic { samples: 50 eval_samples: 21 shape: 8 classes: 4 } }\n"
        "train { steps: 11 global_batch: 15 learning_rate { base: 0.1 } }\n"
        "plugins: [\"nccl\", \"fifo_sched\", \"sgd\", \"cuda_ops\"] sgd { momentum: 0.9 }\n"
        "cuda_ops { tune: \"off\" }\n"
        "hier { inner: \"nccl\" outer: \"nccl\" ranks_per_host: 2 part_bytes: 1024 }\n");
  }

  static Words Hier(const char* ranks, Words more) {
    more.insert(more.begin(), {"-n", ranks, "--plugins", "hier"});
    return more;
  }
};

TEST_F(HierRun, TrainsAsNcclDoes) {
  for (const char* ranks : {"4", "3"}) {
    for (const Words& how :
         {Words{"--plugins", "fifo_sched"},
          {"--plugins", "priority_sched", "--set", "train.shard_optimizer=true"}}) {
      SCOPED_TRACE(std::string(ranks) + " " + how[1]);
      Words flat = how;
      flat.insert(flat.end(), {"-n", ranks});
      const auto expected = Losses("run.pbtxt", flat),
                 losses = Losses("run.pbtxt", Hier(ranks, how));
      ExpectSameLosses(losses, expected, kTolerance, "with hier");
      EXPECT_EQ(Losses("run.pbtxt", Hier(ranks, how)), losses);
    }
  }
}

TEST_F(HierRun, WithRecordedStepsGivesTheBitsOfQueuedOnes) {
  const auto queued = Losses("run.pbtxt", Hier("4", {}));
  EXPECT_EQ(Losses("run.pbtxt", Hier("4", {"--set", "train.record_steps=true"})), queued);
}

TEST_F(HierRun, WithATransferThatHangsEndsAtTheDeadline) {
  const Outcome outcome = Run("run.pbtxt", Hier("4", {"--set", "communication.timeout_ms=500"}),
                              {{"FAKE_NCCL_FAULT", "absent=1@9"}, {"EMULATED_CUDA_DEVICES", "4"}});
  EXPECT_EQ(outcome.exit_code, 202) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("of 'hier/"), HasSubstr("was not done within")));
}

// The ranks of a host have no device memory in common with shm.
TEST_F(HierRun, OverALevelOfTheHostIsRefusedInOneSentence) {
  const Outcome outcome = Run("run.pbtxt", Hier("2", {"--set", "hier.inner=shm"}));
  EXPECT_EQ(outcome.exit_code, 78) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("'hier' moves host memory only, but the ops run on 'cuda'"));
}

}  // namespace
}  // namespace engine::testing
