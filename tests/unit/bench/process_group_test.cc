#include "bench/process/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <csignal>

#include "tests/support/temp_folder.h"

namespace engine::bench {
namespace {

using ::testing::HasSubstr;
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

  const testing::TempFolder folder_;
  const launch::StopSignals signals_;
};

TEST_F(ProcessGroup, RunsAllToTheirEnds) {
  const auto ends = RunAll({Shell("echo $WORD; echo more >&2"), Shell("exit 0")});
  ASSERT_TRUE(ends.ok()) << ends.status().message();
  EXPECT_THAT(*ends, SizeIs(2));
  EXPECT_EQ(FirstFailure(*ends), 2u);
  EXPECT_EQ(testing::ReadWhole(folder_ / "output"), "spoken\nmore\n");
}

TEST_F(ProcessGroup, TheFirstFailureIsTheOneOfTheProgram) {
  const auto ends = RunAll({Shell("sleep 60"), Shell("exit 7")});
  ASSERT_TRUE(ends.ok()) << ends.status().message();
  EXPECT_EQ(FirstFailure(*ends), 1u);
  EXPECT_EQ((*ends)[1].exit_code, 7);
  EXPECT_FALSE((*ends)[1].killed);
  EXPECT_EQ((*ends)[0].exit_code, 128 + SIGKILL);
  EXPECT_TRUE((*ends)[0].killed);
}

// What a program starts belongs to its group.
TEST_F(ProcessGroup, NothingIsLeftAtTheDeadline) {
  const auto ends =
      RunAll({Shell("sh -c 'echo $$ > " + (folder_ / "pid") + "; exec sleep 61' & wait")}, 200);
  ASSERT_FALSE(ends.ok());
  EXPECT_EQ(ends.status().code(), StatusCode::kTimeout);
  const int pid = std::atoi(testing::ReadWhole(folder_ / "pid").c_str());
  ASSERT_GT(pid, 0);
  // Killed, and gone as soon as its new parent has noticed.
  for (int i = 0; i < 1000 && kill(pid, 0) == 0; ++i) {
    const std::string state = testing::ReadWhole("/proc/" + std::to_string(pid) + "/stat");
    if (state.find(") Z ") != std::string::npos) break;
    usleep(5000);
  }
  const std::string state = testing::ReadWhole("/proc/" + std::to_string(pid) + "/stat");
  EXPECT_TRUE(state.empty() || state.find(") Z ") != std::string::npos) << state;
}

TEST_F(ProcessGroup, ASignalStopsAll) {
  raise(SIGTERM);  // blocked, so it waits to be read
  const auto ends = RunAll({Shell("sleep 60")});
  ASSERT_FALSE(ends.ok());
  EXPECT_EQ(ends.status().code(), StatusCode::kInterrupted);
  EXPECT_THAT(ends.status().message(), HasSubstr("SIGTERM"));
}

TEST_F(ProcessGroup, AProgramThatIsNotThereIsNamed) {
  Command command = Shell("");
  command.arguments = {"/no/such/program"};
  const auto ends = RunAll({command});
  ASSERT_FALSE(ends.ok());
  EXPECT_EQ(ends.status().code(), StatusCode::kMissingInput);
  EXPECT_THAT(ends.status().message(), HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace engine::bench
