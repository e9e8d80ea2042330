// Whole runs of the engine with cuda_ops and nccl over fakes: what comes out is what cpu_ops and
// shm give, and what goes wrong is told in the same way.
#include "tests/emulated_cuda/engine_runs.h"
#include "tests/support/matchers.h"
#include "tests/support/training.h"

namespace engine::test {
namespace {

// Sums are rounded in another order by other ops, which training carries on.
constexpr double kTolerance = 2e-4;

constexpr char kNet[] =
    "seed: 3 model { mlp { hidden: [24, 16] } }\n"
    "data { synthetic { samples: 50 eval_samples: 21 shape: 8 classes: 4 } }\n"
    "train { steps: 7 global_batch: 15 learning_rate { base: 0.1 } }\n";
constexpr char kOnCpu[] =
    "plugins: [\"shm\", \"fifo_sched\", \"sgd\", \"cpu_ops\"] sgd { momentum: 0.9 }\n";
// Nothing is to be gained by measuring matrix products that are emulated.
constexpr char kOnGpu[] =
    "plugins: [\"nccl\", \"fifo_sched\", \"sgd\", \"cuda_ops\"] sgd { momentum: 0.9 }\n"
    "cuda_ops { tune: \"off\" }\n";

class NcclRun : public EngineRuns {
 protected:
  void SetUp() override {
    folder_.Write("cpu.pbtxt", std::string(kNet).append(kOnCpu));
    folder_.Write("gpu.pbtxt", std::string(kNet).append(kOnGpu));
  }

  // The same with an NCCL that can neither split nor group.
  static std::vector<std::string> Bare(std::vector<std::string> more) {
    more.insert(more.end(), {"--set", "nccl.library=libbare_nccl.so.2"});
    return more;
  }

  void ExpectSame(const std::vector<std::string>& how, size_t steps = 7) {
    const std::vector<double> expected = Losses("cpu.pbtxt", {"-n", "1"});
    const std::vector<double> losses = Losses("gpu.pbtxt", how);
    ASSERT_GE(expected.size(), steps);
    ExpectSameLosses(losses, expected, kTolerance, "on GPUs");
  }

  // Of two ranks with a GPU each, in `precision`.
  std::vector<double> GptLosses(const std::string& precision, Words more, bool shard) {
    more.insert(more.end(),
                {"-n", "2", "--threads", "--set", "cuda_ops.tune=off", "--set",
                 std::string("cuda_ops.precision=").append(precision), "--set",
                 std::string("train.shard_optimizer=").append(shard ? "true" : "false")});
    return Losses("gpt.pbtxt", more);
  }
};

// dear_sched: all-reduces in two halves, the second before the next forward pass.
TEST_F(NcclRun, OfProcessesAndThreadsTrainsAsTheCpuDoes) {
  for (const Words& how : {Words{"-n", "1"},
                           {"-n", "3", "--plugins", "priority_sched"},
                           {"-n", "3", "--threads", "--plugins", "fifo_sched"},
                           {"-n", "2", "--threads", "--plugins", "dear_sched"}}) {
    SCOPED_TRACE(how.back());
    ExpectSame(how);
  }
}

// The batches have 15 samples and, the fourth one, 5.
TEST_F(NcclRun, WithRecordedStepsGivesTheBitsOfQueuedOnes) {
  for (const char* scheduler : {"fifo_sched", "priority_sched"}) {
    const bool shards = scheduler[0] == 'p';
    std::vector<std::string> how = {"-n", shards ? "3" : "2", "--plugins", scheduler};
    if (shards) how.insert(how.end(), {"--set", "train.shard_optimizer=true"});
    how.insert(how.end(), {"--set", "train.steps=11"});
    const std::vector<double> queued = Losses("gpu.pbtxt", how);
    how.insert(how.end(), {"--set", "train.record_steps=true"});
    EXPECT_EQ(Losses("gpu.pbtxt", how), queued);
  }
}

// Statistics of batch norm go through a second communicator, split from the first where NCCL can.
TEST_F(NcclRun, WithBatchNormOverAllRanksTrainsAsTheCpuDoes) {
  const std::string net =
      "seed: 3 model { resnet { blocks: [1, 1] width: 8 stem: CIFAR } }\n"
      "data { synthetic { samples: 16 eval_samples: 5 shape: [3, 16, 16] classes: 4 } }\n"
      "train { steps: 3 global_batch: 6 learning_rate { base: 0.05 } }\n";
  folder_.Write("cpu.pbtxt", std::string(net).append(kOnCpu));
  folder_.Write("gpu.pbtxt", std::string(net).append(kOnGpu));
  ExpectSame({"-n", "2"}, 3);
  EXPECT_EQ(Losses("gpu.pbtxt", {"-n", "2"}), Losses("gpu.pbtxt", Bare({"-n", "2"})));

  const Outcome outcome =
      Run("gpu.pbtxt", {"-n", "2", "--set", "communication.rendezvous_timeout_ms=3000"},
          {{"FAKE_NCCL_FAULT", "split"}});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("for ops that see all ranks"), HasSubstr("NCCL did not connect")));
  const Outcome refused = Run("gpu.pbtxt", {"-n", "2", "--set", "train.record_steps=true"});
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.err, HasSubstr("is not for models whose ops see the batch of all ranks"));
}

// Each rank writes the states that it has. Where rank 1 does not see the files of rank 0 they come together
// in groups of transfers where NCCL has them: those of the first two layers each, and those of the last
// two, which are small.
TEST_F(NcclRun, WithAShardedOptimizerWritesTheCheckpointOfTheCpu) {
  const auto checkpoint = [](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), {"--plugins", "adamw", "--set", "model.mlp.hidden=24,16,8", "--set",
                             std::string("output.checkpoint=").append(name)});
    return more;
  };
  const std::vector<std::string> sharded = {"-n", "2", "--set", "train.shard_optimizer=true"};
  const auto expected = Losses("cpu.pbtxt", checkpoint("cpu", {"-n", "1"}));
  const auto losses = Losses("gpu.pbtxt", checkpoint("gpu", sharded));
  ExpectSameLosses(losses, expected, kTolerance, "sharded");
  ExpectSameTensors(folder_ / "gpu", folder_ / "cpu", kTolerance);
  EXPECT_EQ(Losses("gpu.pbtxt", checkpoint("bare", Bare(sharded))), losses);
  const auto tensors = TensorsOf(folder_ / "gpu");
  EXPECT_EQ(TensorsOf(folder_ / "bare"), tensors);
  size_t states = 0;
  for (const auto& tensor : tensors) states += tensor.first.starts_with("optimizer/") ? 1 : 0;
  EXPECT_EQ(states, 2 * (tensors.size() - states)) << "the test compares nothing";

  const auto apart = [&](const std::string& name, std::map<std::string, std::string> environment) {
    environment["EMULATED_CUDA_DEVICES"] = "3";
    Words words = checkpoint("/proc/self/cwd/" + name, {"--set", "train.shard_optimizer=true"});
    words.insert(words.begin(), {"run", folder_ / "gpu.pbtxt", "--plugin-path", EMULATED_PLUGINS});
    return RunInTwoFolders(folder_, words, environment);
  };
  EXPECT_THAT(apart("m", {}).err, HasSubstr("it writes checkpoints alone"));
  EXPECT_EQ(TensorsOf(folder_ / "0/m"), tensors);
  const Outcome outcome = apart("none", {{"FAKE_NCCL_FAULT", "group"}});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("collecting optimizer states"));
}

// What ops read of parameters is gathered in bfloat16; the rest comes together for the checkpoint.
// Clipping would add up in another order.
TEST_F(NcclRun, InBFloat16ShardedGivesTheBitsOfUnsharded) {
  WriteGpt();
  const auto run = [this](const char* checkpoint, bool shard, Words more) {
    more.insert(more.end(), {"--plugins", "nccl,cuda_ops", "--set", "clip_norm.max_norm=1e9",
                             "--set", "train.evaluate_every=2", "--set",
                             std::string("output.checkpoint=").append(checkpoint)});
    return GptLosses("bf16", more, shard);
  };
  const std::vector<double> whole = run("whole", false, {});
  EXPECT_EQ(run("sharded", true, {}), whole);
  EXPECT_EQ(TensorsOf(folder_ / "sharded"), TensorsOf(folder_ / "whole"));
  run("half", true, {"--set", "train.steps=2"});
  const std::vector<double> rest = run("rest", true, {"--resume", "half"});
  EXPECT_EQ(rest, std::vector<double>(whole.begin() + 3, whole.end()));
  EXPECT_EQ(TensorsOf(folder_ / "rest"), TensorsOf(folder_ / "whole"));
}

TEST_F(NcclRun, WithGradientsOf16BitsTrainsNearlyAsInFloat32) {
  WriteGpt();
  for (const bool shard : {false, true}) {
    const auto expected = GptLosses("float32", {"--plugins", "nccl,cuda_ops"}, shard);
    for (const char* hook : {"cast_bf16", "cast_fp16"}) {
      const std::string plugins = std::string("nccl,cuda_ops,clip_norm,").append(hook);
      const auto losses = GptLosses("float32", {"--plugins", plugins}, shard);
      ExpectSameLosses(losses, expected, 2e-2, hook);
      EXPECT_NE(losses, expected);
    }
  }
}

TEST_F(NcclRun, WithOpsOnTheCpuIsRefusedInOneSentence) {
  const Outcome outcome = Run("cpu.pbtxt", {"--plugins", "nccl", "-n", "2"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("the ops run on 'cpu'"), HasSubstr("add cuda_ops")));
}

TEST_F(NcclRun, WithATransferThatHangsEndsAtTheDeadline) {
  const Outcome outcome = Run("gpu.pbtxt", {"-n", "2", "--set", "communication.timeout_ms=500"},
                              {{"FAKE_NCCL_FAULT", "absent=1@9"}});
  EXPECT_EQ(outcome.exit_code, 202) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("was not done within 500 ms"));
}

}  // namespace
}  // namespace engine::test
