// Training with the ops of cuda_ops on emulated CUDA: what comes out is what cpu_ops gives, the
// same bits come out whatever the way, and what goes wrong is told in one sentence.
#include <filesystem>
#include <string>
#include <vector>

#include "tests/emulated_cuda/engine_runs.h"
#include "tests/support/matchers.h"
#include "tests/support/training.h"

namespace engine::test {
namespace {

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
};

TEST_F(CudaTraining, GivesTheLossesOfTheCpu) {
  for (const char* config : {"mlp.pbtxt", "gpt.pbtxt"}) {
    SCOPED_TRACE(config);
    const std::vector<double> expected = Losses(config, {});
    EXPECT_LT(expected.back(), expected.front());
    for (const auto& [precision, tolerance] :
         {std::pair("float32", 3e-4), std::pair("tf32", 5e-3), std::pair("bf16", 2e-2)}) {
      const std::string set = std::string("cuda_ops.precision=").append(precision);
      ExpectSameLosses(Losses(config, Cuda({"--set", set})), expected, tolerance, precision);
    }
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
  ExpectSameLosses(Losses("gpt.pbtxt", Cuda({"--set", "train.micro_batches=2"})),
                   Losses("gpt.pbtxt", Cuda()), 1e-4, "micro-batches");
}

// A checkpoint does not know the device: it goes on on the CPU too.
TEST_F(CudaTraining, AResumedRunGivesTheBitsOfTheUninterruptedOne) {
  const Words whole = {"--set", "train.evaluate_every=-1"};
  const Words resumed = {"--set", "train.evaluate_every=-1", "--resume", "half.safetensors"};
  const std::vector<double> on_gpu = Losses("gpt.pbtxt", Cuda(whole));
  const std::vector<double> on_cpu = Losses("gpt.pbtxt", whole);
  Losses("gpt.pbtxt", Cuda({"--set", "train.evaluate_every=-1", "--set", "train.steps=3", "--set",
                            "output.checkpoint=half.safetensors"}));
  const std::vector<double> rest = Losses("gpt.pbtxt", Cuda(resumed));
  EXPECT_EQ(rest, std::vector<double>(on_gpu.begin() + 3, on_gpu.end()));
  ExpectSameLosses(Losses("gpt.pbtxt", resumed),
                   std::vector<double>(on_cpu.begin() + 3, on_cpu.end()), 1e-4, "on the CPU");
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
    // After the notice that the emulated plugin hides the other.
    const std::string error = outcome.err.substr(outcome.err.find("\nengine: ") + 1);
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(error, HasSubstr(one.words));
  }
}

}  // namespace
}  // namespace engine::test
