#include "bench/process/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <csignal>

#include "tests/support/engine_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/words.h"

namespace engine::bench {
namespace {

using ::testing::SizeIs;

class ProcessGroup : public ::testing::Test {
 protected:
  Command Shell(const std::string& script) const {
    return {.arguments = {"sh", "-c", script},
            .environment = {{"PATH", "/usr/bin:/bin"}, {"WORD", "spoken"}},
            .output = folder_ / "output"};
  }
  Result<std::vector<ProcessEnd>> RunAll(const std::vector<Command>& commands,
                                         int64_t timeout_ms = 20000) const {
    return RunTogether(commands, std::chrono::milliseconds(timeout_ms), &signals_,
                       std::chrono::milliseconds(100));
  }

  const test::TempFolder folder_;
  const launch::StopSignals signals_;
};

TEST_F(ProcessGroup, RunsAllToTheirEnds) {
  const auto ends = ValueOf(RunAll({Shell("echo $WORD; echo more >&2"), Shell("exit 0")}));
  EXPECT_THAT(ends, SizeIs(2));
  EXPECT_EQ(FirstFailure(ends), 2u);
  EXPECT_EQ(test::ReadWhole(folder_ / "output"), "spoken\nmore\n");
}

TEST_F(ProcessGroup, TheFirstFailureIsTheOneOfTheProgram) {
  const auto ends = ValueOf(RunAll({Shell("sleep 60"), Shell("exit 7")}));
  EXPECT_EQ(FirstFailure(ends), 1u);
  EXPECT_EQ(ends[1].exit_code, 7);
  EXPECT_FALSE(ends[1].killed);
  EXPECT_EQ(ends[0].exit_code, 128 + SIGKILL);
  EXPECT_TRUE(ends[0].killed);
}

// What a program starts belongs to its group.
TEST_F(ProcessGroup, NothingIsLeftAtTheDeadline) {
  EXPECT_THAT(
      RunAll({Shell("sh -c 'echo $$ > " + (folder_ / "pid") + "; exec sleep 61' & wait")}, 200),
      FailsWith(StatusCode::kTimeout));
  const int pid = std::atoi(test::ReadWhole(folder_ / "pid").c_str());
  ASSERT_GT(pid, 0);
  // Killed, and gone as soon as its new parent has noticed.
  test::Await("its end", [&] { return !IsAlive(pid); });
}

TEST_F(ProcessGroup, ASignalStopsAll) {
  raise(SIGTERM);  // blocked, so it waits to be read
  EXPECT_THAT(RunAll({Shell("sleep 60")}),
              FailsWith(StatusCode::kInterrupted, HasSubstr("on request")));
  EXPECT_EQ(signals_.Read(), SIGTERM) << "it is left for whoever cleans up";
}

TEST_F(ProcessGroup, WhatIsEnoughIsToldToStop) {
  const auto ends = ValueOf(RunTogether({Shell("trap 'echo told; exit 3' TERM; sleep 60 & wait")},
                                        std::chrono::seconds(20), &signals_, kGrace, nullptr,
                                        [] { return true; }));
  EXPECT_TRUE(ends[0].exit_code == 3 || ends[0].exit_code == 128 + SIGTERM);  // before the trap
  EXPECT_FALSE(ends[0].killed);
}

TEST_F(ProcessGroup, AProgramThatIsNotThereIsNamed) {
  Command command = Shell("");
  command.arguments = {"/no/such/program"};
  EXPECT_THAT(RunAll({command}),
              FailsWith(StatusCode::kMissingInput, HasSubstr("/no/such/program")));
}

}  // namespace
}  // namespace engine::bench
