// Ranks as processes: how their ends become one outcome, and that nothing is left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>
#include <thread>

#include "tests/support/probe_process.h"

namespace engine {
namespace {

using testing::HasSubstr;

class Spawn : public testing::Test {
 protected:
  void SetUp() override { AdoptOrphans(); }
  void TearDown() override { EXPECT_TRUE(AwaitNoDescendants()); }

  static std::vector<std::string> Probe(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), LAUNCH_PROBE);
    return arguments;
  }

  // The one line of the outcome.
  static std::string ErrorOf(ProbeProcess& process) {
    std::vector<std::string> lines = process.ReadLines("error: ", 1);
    EXPECT_EQ(lines.size(), 1u) << process.output();
    return lines.empty() ? "" : lines[0];
  }
};

TEST_F(Spawn, RanksAreProcessesThatShareAStore) {
  ProbeProcess process(Probe({"ring", "-n", "4"}));
  EXPECT_EQ(process.Wait(), 0) << process.output();
  std::vector<std::string> pids = process.ReadLines("pid ", 4);
  EXPECT_EQ(std::set<std::string>(pids.begin(), pids.end()).size(), 4u);
}

TEST_F(Spawn, OneRankIsAProcessToo) {
  ProbeProcess process(Probe({"ring"}));
  int launcher = process.pid();
  EXPECT_EQ(process.Wait(), 0) << process.output();
  EXPECT_NE(process.ReadLines("pid ", 1)[0], std::to_string(launcher));
}

TEST_F(Spawn, AnErrorOfOneRankEndsAll) {
  ProbeProcess process(Probe({"fail", "1", "-n", "3"}));
  EXPECT_EQ(process.Wait(), 65);
  EXPECT_EQ(ErrorOf(process), "rank 1: a planned failure");
}

TEST_F(Spawn, AnExceptionOfOneRankEndsAll) {
  ProbeProcess process(Probe({"throw", "0", "-n", "2"}));
  EXPECT_EQ(process.Wait(), 70);
  EXPECT_THAT(ErrorOf(process), HasSubstr("rank 0: an exception left"));
}

TEST_F(Spawn, ARankThatExitsSilentlyHasFailed) {
  ProbeProcess process(Probe({"exit", "2", "-n", "3"}));
  EXPECT_EQ(process.Wait(), 200);
  std::string error = ErrorOf(process);
  EXPECT_THAT(error, HasSubstr("rank 2: its process (pid "));
  EXPECT_THAT(error, HasSubstr("ended with exit code 3 without a result"));
}

TEST_F(Spawn, AKilledRankIsNamedWithItsSignal) {
  for (const char* victim : {"0", "1", "2"}) {
    ProbeProcess process(Probe({"kill", victim, "-n", "3"}));
    EXPECT_EQ(process.Wait(), 137);
    std::string error = ErrorOf(process);
    EXPECT_THAT(error, HasSubstr(std::string("rank ") + victim + ": its process (pid "));
    EXPECT_THAT(error, HasSubstr("was killed by signal 9 (Killed)"));
  }
}

TEST_F(Spawn, ACrashIsNamedWithItsSignal) {
  ProbeProcess process(Probe({"abort", "1", "-n", "2"}));
  EXPECT_EQ(process.Wait(), 134);
  EXPECT_THAT(ErrorOf(process), HasSubstr("was killed by signal 6 (Aborted)"));
}

TEST_F(Spawn, AKillFromOutsideIsNamedToo) {
  ProbeProcess process(Probe({"wait", "-n", "3"}));
  std::vector<std::string> pids = process.ReadLines("pid ", 3);
  kill(std::stoi(pids[1]), SIGKILL);
  EXPECT_EQ(process.Wait(), 137);
  EXPECT_THAT(ErrorOf(process), HasSubstr("(pid " + pids[1] + ") was killed by signal 9"));
}

TEST_F(Spawn, RanksThatListenMayFinishWhatTheyDo) {
  ProbeProcess process(Probe({"tidy", "1", "-n", "3"}));
  EXPECT_EQ(process.Wait(), 203);
  EXPECT_EQ(process.ReadLines("tidied", 2).size(), 2u);
}

TEST_F(Spawn, RanksThatDoNotListenAreKilled) {
  ProbeProcess process(Probe({"stuck", "0", "-n", "3"}));
  EXPECT_EQ(process.Wait(), 203);
  EXPECT_EQ(ErrorOf(process), "rank 0: the first failure");
}

TEST_F(Spawn, ChildrenDieWithAKilledLauncher) {
  ProbeProcess process(Probe({"deaf", "-n", "3"}));
  process.ReadLines("pid ", 3);
  kill(process.pid(), SIGKILL);
  EXPECT_EQ(process.Wait(), 137);
  EXPECT_TRUE(AwaitNoDescendants());
}

TEST_F(Spawn, AStopSignalToTheLauncherReachesEveryRank) {
  for (int signal : {SIGINT, SIGTERM}) {
    ProbeProcess process(Probe({"wait", "-n", "3"}));
    process.ReadLines("pid ", 3);
    kill(process.pid(), signal);
    EXPECT_EQ(process.Wait(), 128 + signal) << process.output();
    EXPECT_EQ(process.ReadLines("stop " + std::to_string(signal), 3).size(), 3u);
    EXPECT_THAT(ErrorOf(process), HasSubstr("stopped after step 7"));
  }
}

TEST_F(Spawn, ACtrlCOfTheTerminalReachesAllAtOnce) {
  ProbeProcess process(Probe({"wait", "-n", "2"}));
  process.ReadLines("pid ", 2);
  kill(-process.pid(), SIGINT);
  EXPECT_EQ(process.Wait(), 130) << process.output();
  EXPECT_EQ(process.ReadLines("stop 2", 2).size(), 2u);
}

TEST_F(Spawn, AStopSignalToOneRankReachesEveryRank) {
  ProbeProcess process(Probe({"wait", "-n", "3"}));
  std::vector<std::string> pids = process.ReadLines("pid ", 3);
  kill(std::stoi(pids[2]), SIGTERM);
  EXPECT_EQ(process.Wait(), 143) << process.output();
  EXPECT_EQ(process.ReadLines("stop 15", 3).size(), 3u);
}

TEST_F(Spawn, ASecondStopSignalKills) {
  ProbeProcess process(Probe({"deaf", "-n", "2"}));
  process.ReadLines("pid ", 2);
  kill(process.pid(), SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // two, not one pending twice
  kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.Wait(), 143);
  EXPECT_THAT(ErrorOf(process), HasSubstr("stopped at once by a second SIGTERM"));
}

TEST_F(Spawn, ThreadsEndTheSameWay) {
  ProbeProcess failing(Probe({"fail", "1", "-n", "3", "--threads"}));
  EXPECT_EQ(failing.Wait(), 65);
  EXPECT_EQ(ErrorOf(failing), "rank 1: a planned failure");
  ProbeProcess stopped(Probe({"wait", "-n", "2", "--threads"}));
  stopped.ReadLines("pid ", 2);
  kill(stopped.pid(), SIGINT);
  EXPECT_EQ(stopped.Wait(), 130);
  ProbeProcess killed(Probe({"deaf", "-n", "2", "--threads"}));
  killed.ReadLines("pid ", 2);
  kill(killed.pid(), SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  kill(killed.pid(), SIGINT);
  EXPECT_EQ(killed.Wait(), 130);
}

TEST_F(Spawn, TooFewDescriptorsIsASentence) {
  ProbeProcess process({"/bin/sh", "-c", "ulimit -n 24; exec \"$0\" ring -n 40", LAUNCH_PROBE});
  EXPECT_EQ(process.Wait(), 203) << process.output();
  EXPECT_THAT(ErrorOf(process), HasSubstr("raise the limit (ulimit -n)"));
}

}  // namespace
}  // namespace engine
