// The commands that train nothing.

#include <regex>

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

using Commands = CliTest;

TEST_F(Commands, EveryCommandExplainsItself) {
  for (const std::string command : {"", "run", "plugins", "plugins new", "config", "config check",
                                    "config print", "sample", "eval", "predict"}) {
    const Outcome outcome = Run(command + " --help");
    EXPECT_EQ(outcome.err, "");
    EXPECT_THAT(Output(outcome), AllOf(HasSubstr("Usage: "), HasSubstr("--help")));
  }
  EXPECT_THAT(Run("--help").out,
              AllOf(HasSubstr("Exit codes"), HasSubstr("config"), HasSubstr("eval"),
                    HasSubstr("plugins"), HasSubstr("run"), HasSubstr("sample")));
  EXPECT_THAT(Output(Run("--version")), MatchesRegex("engine [0-9]+\\.[0-9]+\\.[0-9]+(.|\n)*"));
}

TEST_F(Commands, PluginsAreListedAndDescribed) {
  folder_.Write("folder/libengine_broken.so", "no library");
  EXPECT_THAT(Output(Run("plugins --plugin-path folder")),
              AllOf(HasSubstr("\ntcp "), HasSubstr("\nsgd "), HasSubstr("libengine_broken.so")));
  EXPECT_THAT(Output(Run("plugins tcp")),
              AllOf(HasSubstr("libengine_tcp.so"), HasSubstr("io_threads"), HasSubstr("1 .. 16")));
}

TEST_F(Commands, APluginThatHidesAnotherIsNamed) {
  const std::string name = "libengine_sgd.so", own = ENGINE_TEST_PLUGIN_DIR "/" + name;
  std::filesystem::create_directory(folder_ / "mine");
  std::filesystem::copy_file(own, folder_ / "mine/" + name);
  const Outcome outcome = RunConfig("-q -n 2 --plugin-path mine");
  EXPECT_EQ(outcome.err, "engine: plugin 'sgd': " + folder_ / "mine/" + name +
                             " is used, and not " + own + ", which has the same name\n");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(Output(Run("plugins --check mine/" + name)),
              MatchesRegex("/.*/mine/" + name + ": optimizer 'sgd' 1[.0-9]*, .*: OK\n"));
}

TEST_F(Commands, WhatConfigPrintWritesIsTheSameConfiguration) {
  const std::string printed =
      Output(Run("config print run.pbtxt --set train.steps=9 --plugins priority_sched"));
  EXPECT_THAT(printed, AllOf(HasSubstr("steps: 9"), HasSubstr("--set"), HasSubstr("run.pbtxt:3"),
                             HasSubstr("priority_sched"), Not(HasSubstr("\"fifo_sched\""))));
  folder_.Write("printed.pbtxt", printed);
  EXPECT_EQ(Output(Run("config check printed.pbtxt")), "printed.pbtxt: OK\n");
  EXPECT_EQ(Output(Run("config check")), "built-in default: OK\n");
  // Once more, now that every value comes from the file: only the comments differ.
  const auto values = [](const std::string& text) {
    return std::regex_replace(text, std::regex(" *#[^\n]*"), "");
  };
  EXPECT_EQ(values(Output(Run("config print printed.pbtxt"))), values(printed));
}

// Which communicator trained is in the checkpoint.
TEST_F(Commands, TheCommunicatorFollowsFromTheRun) {
  std::string unnamed = kConfig;
  unnamed.erase(unnamed.find("\"tcp\", "), std::string("\"tcp\", ").size());
  folder_.Write("unnamed.pbtxt", unnamed);
  const auto trained_with = [&](const std::string& words, const Variables& environment = {}) {
    Output(Run("run unnamed.pbtxt --force --set output.checkpoint=model.safetensors " + words,
               environment));
    const std::string checkpoint = Read("model.safetensors");
    std::string found;
    for (const std::string name : {"tcp", "null", "shm", "zmq_ps"}) {
      if (checkpoint.find("plugins: \\\"" + name) != std::string::npos) found += name;
    }
    return found;
  };
  EXPECT_EQ(trained_with("-n 2"), "shm");
  EXPECT_EQ(trained_with("-n 2 --threads"), "shm");
  EXPECT_EQ(trained_with("-n 2 --servers 1"), "zmq_ps");
  EXPECT_EQ(trained_with("-n 2 --plugins tcp"), "tcp");
  // A rank alone on its host.
  EXPECT_EQ(trained_with("", TorchrunRank(0, 1, 29555)), "shm");
}

TEST_F(Commands, ADryRunShowsTheRunAndWritesNothing) {
  const std::string text = Output(RunConfig(
      "-n 3 --dry-run --set output.checkpoint=out/m.st --set train.evaluate_every=2 --set "
      "output.metrics=out/run.jsonl --set train.learning_rate.warmup_steps=4"));
  EXPECT_THAT(text, AllOf(HasSubstr("linear"), HasSubstr("float32 3x16"), HasSubstr("144 "),
                          HasSubstr("optimizer states"),
                          HasSubstr("schedule: 6 steps of 8 samples, 8 steps in an epoch of 64"),
                          HasSubstr("0.00025 at step 1, 0.001 at step 4"),
                          HasSubstr("evaluations: every 2 steps and at the end, on 16 of 16"),
                          HasSubstr("checkpoints: at the end, to out/m.st")));
  EXPECT_THAT(text, AllOf(HasSubstr("ranks 0 to 1: 3 samples of a step"),
                          HasSubstr("rank 2: 2 samples of a step")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(Commands, ProgressIsPlainOrNoneAsAsked) {
  const std::string plain = Output(RunConfig("--progress plain"));
  EXPECT_THAT(plain, AllOf(HasSubstr("step 1/6  loss "), HasSubstr("  mean20 "),
                           HasSubstr("step 6/6  loss "), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(Output(RunConfig("--progress live")), HasSubstr("\r\x1b[Kstep 6/6  loss "));
  EXPECT_THAT(Output(RunConfig("--progress none")),
              AllOf(Not(HasSubstr("samples/s")), HasSubstr("held-out loss")));
}

TEST_F(Commands, AReportIsDrawnFromTheMetricsOfARun) {
  Output(RunConfig("-q --set output.metrics=run.jsonl --set output.checkpoint=m.st"));
  folder_.Write("eval.json", Output(Run("eval m.st --json --mistakes 2")));
  EXPECT_EQ(Output(Run("report run.jsonl --eval eval.json --out page")),
            "report: page/report.html\n");
  EXPECT_THAT(Read("page/report.html"),
              AllOf(HasSubstr("<figcaption>Loss"), HasSubstr("<h2>Mistakes</h2>"),
                    HasSubstr("<h2>Samples of mistakes</h2>")));
  ExpectRefused(
      {{"report none.jsonl --out page", 66, HasSubstr("none.jsonl")},
       {"report run.pbtxt --out page", 65, HasSubstr("run.pbtxt, line 1: no metric of a run")}});
}

TEST_F(Commands, QuietPrintsOnlyResults) {
  const Outcome outcome = RunConfig("-q -n 2");
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(Output(outcome),
              MatchesRegex("step 6  held-out loss [0-9.]+  accuracy [0-9.]+ %  \\(16 targets.*\n"));
}

TEST_F(Commands, ATraceIsWrittenAndSummarised) {
  Output(RunConfig("-q -n 2 --trace run.json"));
  EXPECT_THAT(Output(Run("trace summary run.json")),
              AllOf(HasSubstr("2 ranks"), HasSubstr("schedule  efficiency"),
                    HasSubstr("priority inversions")));
  EXPECT_EQ(Run("trace summary none.json").exit_code, 66);
}

}  // namespace
}  // namespace engine::test
