// A folder with a small configuration in it, to run the engine in; command lines are told in words:
// Run("eval model.safetensors").
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/probe_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/words.h"

namespace engine::test {

class CliTest : public ::testing::Test {
 protected:
  // Trains in milliseconds.
  static constexpr const char* kConfig =
      "seed: 3\n"
      "model { mlp { hidden: [16] } }\n"
      "data { synthetic { samples: 64 eval_samples: 16 shape: 8 classes: 4 } }\n"
      "train { steps: 6 global_batch: 8 }\n"
      "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n";

  void SetUp() override {
    AdoptOrphans();
    folder_.Write("run.pbtxt", kConfig);
  }
  void TearDown() override { EXPECT_TRUE(AwaitNoDescendants()) << "processes are left"; }

  std::unique_ptr<EngineProcess> Start(const std::string& words,
                                       const Variables& environment = {}) const {
    return std::make_unique<EngineProcess>(folder_.path().native(), Words(words), environment);
  }
  Outcome Run(const std::string& words, const Variables& environment = {}) const {
    return Start(words, environment)->Wait();
  }
  Outcome RunConfig(const std::string& words) const { return Run("run run.pbtxt " + words); }
  std::string Read(const char* name) const { return ReadWhole(folder_ / name); }

  // A checkpoint of a small gpt, of the text in text.txt.
  void TrainOnText(const std::string& checkpoint) const {
    folder_.Write("text.txt", std::string(400, 'x'));
    Output(
        RunConfig("-q --set data.text.path=text.txt --set data.text.context=8 --set "
                  "model.gpt.width=16 --set model.gpt.layers=1 --set train.evaluate_every=-1 "
                  "--set output.checkpoint=" +
                  checkpoint));
  }

  // The engine did what it was told; what it printed.
  std::string Output(const Outcome& outcome) const {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
  // The engine refused: the exit code of the contract, no output, and one line on standard error.
  static std::string Refusal(const Outcome& outcome, int exit_code) {
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, ::testing::StartsWith("engine: "));
    return outcome.err;
  }
  struct Mistake {
    std::string words;
    int exit_code;
    ::testing::Matcher<std::string> sentence;
  };
  void ExpectRefused(const std::vector<Mistake>& mistakes) const {
    for (const Mistake& mistake : mistakes) {
      SCOPED_TRACE(mistake.words);
      EXPECT_THAT(Refusal(Run(mistake.words), mistake.exit_code), mistake.sentence);
    }
  }

  // A run that would not end by itself, in the middle of its training.
  std::unique_ptr<EngineProcess> StartLongRun(const std::string& words) {
    std::filesystem::remove(folder_ / "run.jsonl");
    auto process = Start(
        "run run.pbtxt -q --set train.steps=100000000 --set output.metrics=run.jsonl " + words);
    AwaitSteps(5);
    return process;
  }
  void AwaitSteps(int64_t steps) {
    Await("more steps", [&] { return StepsWritten() >= steps; });
  }
  int64_t StepsWritten() const {
    const std::string metrics = Read("run.jsonl");
    return std::count(metrics.begin(), metrics.end(), '\n');
  }
  // That a member of the run, killed by signal 9, has ended it and is named once.
  void ExpectKilled(EngineProcess& process, const std::string& member) const {
    EXPECT_THAT(
        Refusal(process.Wait(), 137),
        ::testing::MatchesRegex("engine: " + member +
                                ": its process \\(pid [0-9]+\\) was killed by signal 9 .*\n"));
    EXPECT_TRUE(AwaitNoDescendants());
  }

  TempFolder folder_;
};

}  // namespace engine::test
