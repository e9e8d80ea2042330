// The commands that train nothing.

#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

using Commands = CliTest;

TEST_F(Commands, EveryCommandExplainsItself) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{},
                                                  {"run"},
                                                  {"plugins"},
                                                  {"config"},
                                                  {"config", "check"},
                                                  {"config", "print"},
                                                  {"sample"},
                                                  {"eval"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--help");
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, "");
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("Usage: "), HasSubstr("--help")));
  }
  EXPECT_THAT(Run({"--help"}).out,
              AllOf(HasSubstr("Exit codes"), HasSubstr("config"), HasSubstr("eval"),
                    HasSubstr("plugins"), HasSubstr("run"), HasSubstr("sample")));
}

TEST_F(Commands, Version) {
  const Outcome outcome = Run({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, MatchesRegex("engine [0-9]+\\.[0-9]+\\.[0-9]+(.|\n)*"));
}

TEST_F(Commands, PluginsListsThoseOfThisBuildAndWhatCannotBeUsed) {
  folder_.Write("folder/libengine_broken.so", "no library");
  const Outcome outcome = Run({"plugins", "--plugin-path", "folder"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* name : {"adamw", "clip_norm", "clip_value", "cpu_ops", "fifo_sched", "tcp",
                           "null", "priority_sched", "sgd"}) {
    EXPECT_THAT(outcome.out, HasSubstr(name));
  }
  EXPECT_THAT(outcome.out, HasSubstr("libengine_broken.so"));
}

TEST_F(Commands, PluginsDescribesOne) {
  const Outcome outcome = Run({"plugins", "tcp"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("communicator"), HasSubstr("libengine_tcp.so"),
                                 HasSubstr("io_threads"), HasSubstr("1 .. 16")));
  EXPECT_THAT(Run({"plugins", "cpu_ops"}).out, HasSubstr("layer_norm"));
}

TEST_F(Commands, WhatConfigPrintWritesIsTheSameConfiguration) {
  const Outcome printed = Run(
      {"config", "print", "run.pbtxt", "--set", "train.steps=9", "--plugins", "priority_sched"});
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_THAT(printed.out,
              AllOf(HasSubstr("steps: 9"), HasSubstr("--set"), HasSubstr("run.pbtxt:3"),
                    HasSubstr("priority_sched"), Not(HasSubstr("\"fifo_sched\""))));
  folder_.Write("printed.pbtxt", printed.out);
  const Outcome checked = Run({"config", "check", "printed.pbtxt"});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_EQ(checked.out, "printed.pbtxt: OK\n");

  // Once more, now that every value comes from the file: only the comments differ.
  const auto values = [](const std::string& text) {
    std::string kept;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      kept += line.substr(0, line.find_last_not_of(' ', line.find('#') - 1) + 1) + "\n";
      begin = end + 1;
    }
    return kept;
  };
  EXPECT_EQ(values(Run({"config", "print", "printed.pbtxt"}).out), values(printed.out));
}

// Which communicator trained is in the checkpoint.
TEST_F(Commands, TheCommunicatorFollowsFromTheRun) {
  std::string unnamed = kConfig;
  unnamed.erase(unnamed.find("\"tcp\", "), std::string("\"tcp\", ").size());
  folder_.Write("unnamed.pbtxt", unnamed);
  const std::string save = "output.checkpoint=model.safetensors";
  const auto trained_with = [&](std::vector<std::string> more,
                                const std::map<std::string, std::string>& environment = {}) {
    std::vector<std::string> arguments{"run", "unnamed.pbtxt", "--set", save};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = Run(arguments, environment);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::string checkpoint = Read("model.safetensors");
    std::string found;
    for (const char* name : {"tcp", "null", "shm", "zmq_ps"}) {
      if (checkpoint.find("plugins: \\\"" + std::string(name)) != std::string::npos) found += name;
    }
    return found;
  };
  EXPECT_EQ(trained_with({"-n", "2"}), "shm");
  EXPECT_EQ(trained_with({"-n", "2", "--threads"}), "shm");
  EXPECT_EQ(trained_with({"-n", "2", "--servers", "1"}), "zmq_ps");
  EXPECT_EQ(trained_with({"-n", "2", "--plugins", "tcp"}), "tcp");
  // A rank alone on its host, as torchrun says it.
  EXPECT_EQ(trained_with({}, {{"RANK", "0"},
                              {"WORLD_SIZE", "1"},
                              {"LOCAL_RANK", "0"},
                              {"LOCAL_WORLD_SIZE", "1"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", "29555"}}),
            "shm");
}

TEST_F(Commands, ConfigCheckOfTheBuiltInDefault) {
  const Outcome outcome = Run({"config", "check"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "built-in default: OK\n");
}

TEST_F(Commands, QuietPrintsOnlyResults) {
  const Outcome outcome = RunConfig({"-q", "-n", "2"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out,
              MatchesRegex("step 6  held-out loss [0-9.]+  accuracy [0-9.]+ %  \\(16 targets.*\n"));
}

TEST_F(Commands, ATraceIsWrittenAndSummarised) {
  const Outcome run = RunConfig({"-q", "-n", "2", "--trace", "run.json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Outcome summary = Run({"trace", "summary", "run.json"});
  EXPECT_EQ(summary.exit_code, 0) << summary.err;
  EXPECT_THAT(summary.out, AllOf(HasSubstr("2 ranks"), HasSubstr("schedule  efficiency"),
                                 HasSubstr("priority inversions")));
  const Outcome missing = Run({"trace", "summary", "none.json"});
  EXPECT_EQ(missing.exit_code, 66);
  const Outcome simulated =
      Run({"simulate", "run.json", "--ranks", "2,16", "--bandwidth", "1gbit", "--steps", "8"});
  EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
  EXPECT_THAT(simulated.out, HasSubstr("ranks   step ms"));
}

}  // namespace
}  // namespace engine::testing
