// A run that is killed again and again, at random moments, and goes on each time from what is
// there: nothing that was finished is lost, and in the end it is the run that was never killed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "app/checkpoint/checkpoint.h"
#include "app/checkpoint/retention.h"
#include "tests/support/expect_status.h"
#include "tests/support/probe_process.h"
#include "tests/support/words.h"
#include "tests/system/train/run_test.h"

namespace engine::test {
namespace {

namespace fs = std::filesystem;

// A checkpoint after every step; images that are another in every epoch; two states per parameter.
constexpr char kConfig[] =
    "seed: 3 model { mlp { hidden: [24, 16] } }\n"
    "data { synthetic { samples: 50 eval_samples: 0 shape: [1, 6, 6] classes: 4 }\n"
    "  augment { crop_padding: 2 flip: true } }\n"
    "train { steps: 100000000 global_batch: 15 checkpoint_every: 1 evaluate_every: -1\n"
    "  learning_rate { base: 0.003 } }\n"
    "output { checkpoint: \"model.safetensors\" metrics: \"run.jsonl\" keep_checkpoints: 2 }\n"
    "plugins: [\"tcp\", \"fifo_sched\", \"adamw\", \"cpu_ops\"] cpu_ops { threads: 1 }\n";

constexpr size_t kKeep = 2;

class Kill : public RunTest {
 protected:
  void SetUp() override {
    AdoptOrphans();
    folder_.Write("run.pbtxt", kConfig);
  }
  void TearDown() override { EXPECT_TRUE(AwaitNoDescendants()) << "processes are left"; }

  std::vector<std::string> Arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = Run();
    if (fs::exists(path_)) arguments.insert(arguments.end(), {"--resume", "model.safetensors"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  std::vector<std::string> Run() const {
    return Words("run run.pbtxt -q -n " + std::to_string(ranks_) +
                 " --set train.shard_optimizer=" + (shards_ ? "true" : "false"));
  }

  // Another number for each checkpoint that was written; 0 for none.
  uint64_t FileNumber() const {
    struct stat info {};
    return stat(path_.c_str(), &info) == 0 ? info.st_ino : 0;
  }

  // Starts the run, or goes on with it, and kills its launcher and its ranks: one time in four at
  // any moment of its start, else when it has written up to three checkpoints, at any moment of the
  // step or of the writing that is under way by then.
  void RunAndKill() {
    uint64_t seen = FileNumber();
    EngineProcess process(folder_.path().native(), Arguments());
    std::chrono::microseconds delay(random_() % 200000);
    if (random_() % 4 != 0) {
      for (uint64_t left = 1 + random_() % 3; left > 0; --left) {
        ASSERT_TRUE(Await("a checkpoint", [&] { return FileNumber() != seen; }));
        seen = FileNumber();
      }
      delay = std::chrono::microseconds(random_() % 8000);
    }
    std::this_thread::sleep_for(delay);
    std::vector<int> ranks;
    if (one_rank_) {
      ASSERT_TRUE(Await("ranks", [&] { return (ranks = process.Children()).size() >= ranks_; }));
    }
    kill(one_rank_ ? ranks[random_() % ranks_] : -process.pid(), SIGKILL);
    const Outcome outcome = process.Wait();
    ASSERT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.err;
    ASSERT_TRUE(AwaitNoDescendants());
  }

  // Of a file that must be whole.
  static checkpoint::CheckpointInfo InfoOf(const std::string& path) {
    return ValueOf(checkpoint::OpenCheckpoint(path)).info;
  }

  // Of the checkpoints with a number, by that number.
  std::map<int64_t, std::string> Numbered() const {
    std::map<int64_t, std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename();
      int64_t step = 0;
      if (std::sscanf(name.c_str(), "model.%" SCNd64 ".safetensors", &step) == 1) {
        found[step] = entry.path();
      }
    }
    return found;
  }

  // The last checkpoint that the run has said to be written.
  int64_t LastReported() const {
    const nlohmann::json last = LastEvent(folder_ / "run.jsonl", "checkpoint");
    return last.is_null() ? 0 : last["step"].get<int64_t>();
  }

  // What a kill must leave behind.
  void CheckFiles() {
    const int64_t reported = LastReported();
    const int64_t step = fs::exists(path_) ? InfoOf(path_).step : 0;
    EXPECT_GE(step, reported) << "a finished checkpoint is lost";
    EXPECT_GE(step, last_) << "the run went back";
    last_ = step;
    const auto numbered = Numbered();
    for (const auto& [number, path] : numbered) {
      EXPECT_EQ(InfoOf(path).step, number) << path;
      EXPECT_LE(number, step) << path;
    }
    EXPECT_LE(numbered.size(), kKeep);
    const bool linked = step == 0 || numbered.contains(step);
    const size_t different = numbered.size() + (linked ? 0 : 1);
    EXPECT_GE(different, std::min(kKeep, different_)) << "there were more checkpoints before";
    different_ = different;
  }

  void RunToTheEnd(const std::vector<std::string>& arguments) {
    const Outcome outcome = Engine(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }

  void KillTimes(int times) {
    for (int i = 0; i < times && !HasFailure(); ++i) {
      SCOPED_TRACE("kill " + std::to_string(i + 1) + " of " + std::to_string(times));
      RunAndKill();
      CheckFiles();
    }
    ASSERT_FALSE(HasFailure());
    const std::string steps = "train.steps=" + std::to_string(last_ + 5);
    RunToTheEnd(Arguments({"--set", steps}));
    std::vector<std::string> whole_run = Run();
    for (const std::string& value :
         {steps, std::string("output.checkpoint=whole/w"), std::string("output.keep_checkpoints=1"),
          std::string("train.checkpoint_every=0"), std::string("output.metrics=whole/m")}) {
      whole_run.insert(whole_run.end(), {"--set", value});
    }
    RunToTheEnd(whole_run);
    EXPECT_TRUE(Tensors("model.safetensors") == Tensors("whole/w"));
    const auto killed = InfoOf(path_), whole = InfoOf(folder_ / "whole/w");
    EXPECT_EQ(killed.step, last_ + 5);
    EXPECT_EQ(killed.position.epoch, whole.position.epoch);
    EXPECT_EQ(killed.position.samples, whole.position.samples);
    CheckFiles();
    ExpectNothingElse();
  }

  // The files of the last two steps, and no temporary file of any run.
  void ExpectNothingElse() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    const auto numbered = [&](int64_t step) {
      return checkpoint::NameAtStep("model.safetensors", step);
    };
    EXPECT_THAT(names, ::testing::UnorderedElementsAre("run.pbtxt", "run.jsonl", "whole",
                                                       "model.safetensors", numbered(last_ - 1),
                                                       numbered(last_)));
  }

  const std::string path_ = folder_ / "model.safetensors";
  size_t ranks_ = 2;
  bool shards_ = false, one_rank_ = false;  // killed alone
  std::mt19937 random_{59};
  int64_t last_ = 0;      // the step of the newest checkpoint
  size_t different_ = 0;  // checkpoints, under whatever names
};

TEST_F(Kill, FiveTimes) {
  KillTimes(5);
}

// Of those that write a file together.
TEST_F(Kill, OneOfThreeRanksThatWriteTheirShards) {
  ranks_ = 3;
  shards_ = one_rank_ = true;
  KillTimes(6);
}

TEST_F(Kill, FiftyNineTimes) {
  KillTimes(59);
}

}  // namespace
}  // namespace engine::test
