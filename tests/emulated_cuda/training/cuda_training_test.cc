// Training with the ops of cuda_ops on emulated CUDA: what comes out is what cpu_ops gives, the
// same bits come out whatever the way, and what goes wrong is told in one sentence.
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/emulated_cuda/engine_runs.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaTraining : public EngineRuns {
 protected:
  void SetUp() override {
    WriteGpt();
    folder_.Write("mlp.pbtxt",
                  "seed: 3 model { mlp { hidden: [24, 16] } }\n"
                  "data { synthetic { samples: 50 eval_samples: 21 shape: 8 classes: 4 } }\n"
                  "train { steps: 9 global_batch: 15 learning_rate { base: 0.1 } }\n"
                  "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"cpu_ops\", \"clip_value\"]\n"
                  "sgd { momentum: 0.9 } clip_value { threshold: 0.05 }\n");
  }

  // Measuring takes long where nothing is fast.
  static Words Cuda(Words more = {}) {
    more.insert(more.begin(), {"--plugins", "cuda_ops", "--set", "cuda_ops.tune=off"});
    return more;
  }

  static void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                         double tolerance) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], tolerance * std::abs(want[i])) << "loss " << i;
    }
  }
};

TEST_F(CudaTraining, GivesTheLossesOfTheCpu) {
  for (const char* config : {"mlp.pbtxt", "gpt.pbtxt"}) {
    SCOPED_TRACE(config);
    const std::vector<double> expected = Losses(config, {});
    EXPECT_LT(expected.back(), expected.front());
    ExpectNear(Losses(config, Cuda()), expected, 3e-4);
    ExpectNear(Losses(config, Cuda({"--set", "cuda_ops.precision=tf32"})), expected, 5e-3);
    ExpectNear(Losses(config, Cuda({"--set", "cuda_ops.precision=bf16"})), expected, 2e-2);
  }
}

TEST_F(CudaTraining, RunsThatAreRepeatedGiveTheSameBits) {
  const Words bf16 = {"--set", "cuda_ops.precision=bf16"};
  EXPECT_EQ(Losses("gpt.pbtxt", Cuda(bf16)), Losses("gpt.pbtxt", Cuda(bf16)));
  // What is measured in the first run is kept for the second.
  const std::string file = folder_ / "tune.txt";
  const Words measured =
      Cuda({"--set", "cuda_ops.tune=time", "--set", "cuda_ops.tune_file=" + file});
  const std::vector<double> losses = Losses("mlp.pbtxt", measured);
  const auto size = std::filesystem::file_size(file);
  EXPECT_GT(size, 1000u);
  EXPECT_EQ(Losses("mlp.pbtxt", measured), losses);
  EXPECT_EQ(std::filesystem::file_size(file), size);
}

TEST_F(CudaTraining, RecordedStepsGiveTheBitsOfQueuedOnes) {
  for (const char* config : {"mlp.pbtxt", "gpt.pbtxt"}) {
    SCOPED_TRACE(config);
    EXPECT_EQ(Losses(config, Cuda({"--set", "train.record_steps=true"})), Losses(config, Cuda()));
  }
}

TEST_F(CudaTraining, RecordedStepsAreRefusedWhereTheyCannotBe) {
  const Words record = {"--set", "train.record_steps=true"};
  const Words micro = {"--set", "train.record_steps=true", "--set", "train.micro_batches=2"};
  for (const Outcome& outcome : {Run("mlp.pbtxt", record), Run("mlp.pbtxt", Cuda(micro))}) {
    EXPECT_EQ(outcome.exit_code, 78);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("train.record_steps is for GPUs, without train.micro_batches")));
  }
}

TEST_F(CudaTraining, MicroBatchesAddUp) {
  ExpectNear(Losses("gpt.pbtxt", Cuda({"--set", "train.micro_batches=2"})),
             Losses("gpt.pbtxt", Cuda()), 1e-4);
}

TEST_F(CudaTraining, AResumedRunGivesTheBitsOfTheUninterruptedOne) {
  const Words whole = {"--set", "train.evaluate_every=-1"};
  const std::vector<double> expected = Losses("gpt.pbtxt", Cuda(whole));
  Losses("gpt.pbtxt", Cuda({"--set", "train.evaluate_every=-1", "--set", "train.steps=3", "--set",
                            "output.checkpoint=half.safetensors"}));
  const std::vector<double> rest = Losses(
      "gpt.pbtxt", Cuda({"--set", "train.evaluate_every=-1", "--resume", "half.safetensors"}));
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(rest, std::vector<double>(expected.begin() + 3, expected.end()));
}

// A checkpoint does not know the device.
TEST_F(CudaTraining, ACheckpointOfTheGpuGoesOnOnTheCpu) {
  const std::vector<double> expected = Losses("gpt.pbtxt", {"--set", "train.evaluate_every=-1"});
  Losses("gpt.pbtxt", Cuda({"--set", "train.evaluate_every=-1", "--set", "train.steps=3", "--set",
                            "output.checkpoint=half.safetensors"}));
  const std::vector<double> rest =
      Losses("gpt.pbtxt", {"--set", "train.evaluate_every=-1", "--resume", "half.safetensors"});
  ExpectNear(rest, std::vector<double>(expected.begin() + 3, expected.end()), 1e-4);
}

TEST_F(CudaTraining, ACommunicatorOfHostMemoryIsRefused) {
  for (const char* communicator : {"shm", "tcp"}) {
    const Outcome outcome =
        Run("mlp.pbtxt", {"--plugins", std::string(communicator).append(",cuda_ops")});
    EXPECT_EQ(outcome.exit_code, 78);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr(communicator), HasSubstr("host memory only"),
                      HasSubstr("choose a communicator for the memory of that device")));
  }
}

TEST_F(CudaTraining, ErrorsOfTheDeviceAreOneSentence) {
  struct Case {
    std::map<std::string, std::string> environment;
    int exit_code;
    const char* words;
  };
  const Case cases[] = {
      {{{"EMULATED_CUDA_DEVICES", "0"}}, 79, "no GPU"},
      {{{"EMULATED_CUDA_FAULT", "cudaGetDeviceCount:1=35"}}, 79, "update the driver"},
      {{{"EMULATED_CUDA_FAULT", "cudaMallocFromPoolAsync:4=2"}}, -1, "cannot allocate"},
      {{{"EMULATED_CUDA_FAULT", "cudaLaunchKernel:40=700"}}, -1, "illegal memory access"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.words);
    const Outcome outcome = Run("mlp.pbtxt", Cuda(), one.environment);
    EXPECT_NE(outcome.exit_code, 0);
    if (one.exit_code >= 0) {
      EXPECT_EQ(outcome.exit_code, one.exit_code);
    }
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(one.words));
  }
}

}  // namespace
}  // namespace engine::testing
