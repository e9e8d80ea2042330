// Ranks of mpirun on emulated GPUs: what MPI moves there gives what shm gives on the CPU.
#include <signal.h>

#include <cstdlib>

#include "tests/emulated_cuda/engine_runs.h"
#include "tests/support/training.h"

namespace engine::test {
namespace {

using ::testing::HasSubstr;

class MpiRun : public EngineRuns {
 protected:
  void SetUp() override {
    folder_.Write(
        "run.pbtxt",
        "seed: 3 model { mlp { hidden: [240, 15] } }\n"
        "data { synthetic { samples: 50 eval_samples: 21 shape: 80 classes: 4 } }\n"
        "train { steps: 6 global_batch: 14 learning_rate { base: 0.1 } }\n"
        "plugins: [\"mpi\", \"fifo_sched\", \"sgd\", \"cuda_ops\"] sgd { momentum: 0.9 }\n"
        "cuda_ops { tune: \"off\" } mpi { message_kb: 1 }\n");
  }
  // Each rank runs `first` before, in a shell. Build machines often work as root in a container, which
  // Open MPI wants to be told twice.
  static Words Command(const std::string& config, const std::string& first, Words more) {
    Words command = {MPIRUN, "--oversubscribe", "-n", "2", "-x", "LD_LIBRARY_PATH"};
    for (const Words& part :
         {Words{"-x", "LD_PRELOAD=" SAYS_CUDA, "bash", "-c"}, Words{first + "; exec \"$@\"", "-"},
          Words{ENGINE_TEST_BINARY, "run", config, "-q"}, Words{"--plugin-path", EMULATED_PLUGINS},
          more}) {
      command.insert(command.end(), part.begin(), part.end());
    }
    return command;
  }
  const std::map<std::string, std::string> as_root_ = {
      {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
      {"EMULATED_CUDA_DEVICES", "2"},
      {"LD_LIBRARY_PATH", getenv("LD_LIBRARY_PATH")}};
};

TEST_F(MpiRun, TrainsAsShmDoesOnTheCpu) {
  for (const Words& how :
       {Words{}, {"--plugins", "priority_sched", "--set", "train.shard_optimizer=true"}}) {
    Words words = how;
    words.insert(words.end(), {"--set", "output.metrics=" + (folder_ / "mpi.jsonl")});
    ProbeProcess process(Command(folder_ / "run.pbtxt", "true", words), as_root_);
    ASSERT_EQ(process.Wait(), 0) << process.output();
    const std::vector<double> losses = TakeLosses("mpi.jsonl");
    Words on_cpu = how;
    on_cpu.insert(on_cpu.end(), {"-n", "2", "--plugins", "shm,cpu_ops"});
    ExpectSameLosses(losses, Losses("run.pbtxt", on_cpu), 2e-5, "with mpi");
  }
}

TEST_F(MpiRun, WhereALibraryTakesNoDeviceMemoryIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"unset LD_PRELOAD", "'mpi' moves host memory only, but the ops run on 'cuda'"},
      {"[ $OMPI_COMM_WORLD_RANK = 0 ] || unset LD_PRELOAD",
       "the MPI library of rank 1 does not take memory of CUDA devices, unlike that of rank 0"}};
  for (const auto& [first, sentence] : cases) {
    ProbeProcess process(Command(folder_ / "run.pbtxt", first, {}), as_root_);
    EXPECT_EQ(process.Wait(), 78) << process.output();
    EXPECT_THAT(process.output(), HasSubstr(sentence));
  }
}

TEST_F(MpiRun, AKilledRankIsNamed) {
  static constexpr char kTellPid[] = "echo pid $OMPI_COMM_WORLD_RANK $$";  // and becomes the rank
  const Words words = {"--set", "train.steps=1000000",
                       "--set", "communication.timeout_ms=2000",
                       "--set", "output.metrics=" + (folder_ / "mpi.jsonl")};
  ProbeProcess process(Command(folder_ / "run.pbtxt", kTellPid, words), as_root_);
  int killed = 0;
  for (const std::string& line : process.ReadLines("pid ", 2)) {
    if (line[0] == '1') killed = std::stoi(line.substr(2));
  }
  ASSERT_GT(killed, 0);
  const auto trains = [&] {
    std::ifstream file(folder_ / "mpi.jsonl");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.find("\"loss\"") != std::string::npos;
  };
  ASSERT_TRUE(Await("a step", trains));
  kill(killed, SIGKILL);
  EXPECT_EQ(process.Wait(), 137) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("rank 1: its connection"));
}

}  // namespace
}  // namespace engine::test
