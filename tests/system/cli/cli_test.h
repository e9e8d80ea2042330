// A folder with a small configuration in it, to run the engine in.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/probe_process.h"
#include "tests/support/temp_folder.h"

namespace engine::testing {

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

  Outcome Run(std::vector<std::string> arguments,
              const std::map<std::string, std::string>& environment = {}) const {
    return RunEngine(folder_.path().native(), std::move(arguments), environment);
  }
  Outcome RunConfig(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"run", "run.pbtxt"});
    return Run(std::move(arguments));
  }
  std::string Read(const char* name) const { return ReadWhole(folder_ / name); }

  // The engine refused: the exit code of the contract, no output, and one line on standard error.
  static std::string Refusal(const Outcome& outcome, int exit_code) {
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, ::testing::StartsWith("engine: "));
    return outcome.err;
  }

  TempFolder folder_;
};

}  // namespace engine::testing
