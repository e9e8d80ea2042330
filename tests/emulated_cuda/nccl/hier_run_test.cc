// Whole runs with hier over emulated GPUs, of four ranks that are two hosts, or three that are two and
// one: what comes out is what nccl alone gives.
#include "tests/emulated_cuda/engine_runs.h"
#include "tests/support/training.h"

namespace engine::test {
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
        "train { steps: 6 global_batch: 15 learning_rate { base: 0.1 } }\n"
        "plugins: [\"nccl\", \"fifo_sched\", \"sgd\", \"cuda_ops\"] sgd { momentum: 0.9 }\n"
        "cuda_ops { tune: \"off\" }\n"
        "hier { inner: \"nccl\" outer: \"nccl\" ranks_per_host: 2 part_bytes: 1024 }\n");
  }
};

TEST_F(HierRun, TrainsAsNcclDoes) {
  for (const Words& how :
       {Words{"-n", "4", "--plugins", "priority_sched", "--set", "train.shard_optimizer=true"},
        {"-n", "3", "--threads"}}) {
    SCOPED_TRACE(how[1]);
    Words with_hier = how;
    with_hier.insert(with_hier.end(), {"--plugins", "hier"});
    const auto losses = Losses("run.pbtxt", with_hier);
    ExpectSameLosses(losses, Losses("run.pbtxt", how), kTolerance, "with hier");
    EXPECT_EQ(Losses("run.pbtxt", with_hier), losses);
  }
}

TEST_F(HierRun, WithATransferThatHangsEndsAtTheDeadline) {
  const Outcome outcome =
      Run("run.pbtxt", {"-n", "4", "--plugins", "hier", "--set", "communication.timeout_ms=500"},
          {{"FAKE_NCCL_FAULT", "absent=1@9"}, {"EMULATED_CUDA_DEVICES", "4"}});
  EXPECT_EQ(outcome.exit_code, 202) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("communicator 'hier': all-reduce of"),
                                 HasSubstr("was not done within")));
}

TEST_F(HierRun, OverALevelOfTheHostOrWithRecordedStepsIsRefusedInOneSentence) {
  const Words hier = {"-n", "2", "--plugins", "hier", "--set"};
  const auto error = [&](const char* setting) {
    Words words = hier;
    words.emplace_back(setting);
    const Outcome outcome = Run("run.pbtxt", words);
    EXPECT_EQ(outcome.exit_code, 78) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(error("hier.inner=shm"),
              HasSubstr("'hier' moves host memory only, but the ops run on 'cuda'"));
  EXPECT_THAT(error("train.record_steps=true"), HasSubstr("those of 'hier' cannot"));
}

}  // namespace
}  // namespace engine::test
