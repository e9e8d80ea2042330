// Ranks and servers as processes: how their ends become one outcome, and that nothing is left
// behind.

#include <signal.h>

#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "tests/support/matchers.h"
#include "tests/system/launch/probe_test.h"

namespace engine {
namespace {

using Spawn = ProbeTest;

TEST_F(Spawn, RanksAreProcessesThatShareAStore) {
  ProbeProcess& process = Start("ring -n 4");
  EXPECT_EQ(process.Wait(), 0) << process.output();
  const std::vector<std::string> pids = process.ReadLines("pid ", 4);
  EXPECT_EQ(std::set<std::string>(pids.begin(), pids.end()).size(), 4u);
}

TEST_F(Spawn, OneRankIsAProcessToo) {
  ProbeProcess& process = Start("ring");
  const int launcher = process.pid();
  EXPECT_EQ(process.Wait(), 0) << process.output();
  EXPECT_NE(LineOf(process, "pid "), std::to_string(launcher));
}

struct End {
  std::string words;
  int exit_code;
  std::string error;  // a regular expression
};

class SpawnEnds : public ProbeTest, public ::testing::WithParamInterface<End> {};

TEST_P(SpawnEnds, WithTheCodeAndTheSentenceOfTheFirstFailure) {
  ProbeProcess& process = Start(GetParam().words);
  EXPECT_EQ(process.Wait(), GetParam().exit_code) << process.output();
  EXPECT_THAT(ErrorOf(process), MatchesRegex(GetParam().error));
  EXPECT_THAT(process.output(), Not(HasSubstr("notice: ")));
}

const std::string kKilled = ": its process \\(pid [0-9]+\\) was killed by signal 9 \\(Killed\\).*";

INSTANTIATE_TEST_SUITE_P(
    All, SpawnEnds,
    ::testing::Values(
        End{"fail 1 -n 3", 65, "rank 1: a planned failure"},
        End{"fail 1 -n 3 --threads", 65, "rank 1: a planned failure"},
        End{"throw 0 -n 2", 70, "rank 0: an exception left.*"},
        End{"exit 2 -n 3", 200,
            "rank 2: its process \\(pid [0-9]+\\) ended with exit code 3 without a result.*"},
        End{"kill 0 -n 3", 137, "rank 0" + kKilled}, End{"kill 1 -n 3", 137, "rank 1" + kKilled},
        End{"kill 2 -n 3", 137, "rank 2" + kKilled},
        End{"abort 1 -n 2", 134, "rank 1: .* was killed by signal 6 \\(Aborted\\).*"},
        // Ranks that do not listen are killed.
        End{"stuck 0 -n 3", 203, "rank 0: the first failure"},
        End{"server-kill 0 -n 2 --servers 2", 137, "server 0" + kKilled},
        End{"server-kill 1 -n 2 --servers 2", 137, "server 1" + kKilled},
        End{"server-stay -n 2 --servers 1", 202,
            "rank -1: server 0 did not end within 300 ms after the last rank"},
        End{"stay 1 -n 3 --leave-ms 300", 202,
            "rank -1: rank 1 did not end within 300 ms after rank ."},
        // A run may survive the loss of a rank, but not of rank 0.
        End{"lossy 0 --deaths 1 --restarts 5 -n 3 --servers 1", 137, "rank 0" + kKilled}));

// Threads that hang have launch::kHangMs.
INSTANTIATE_TEST_SUITE_P(Slow, SpawnEnds,
                         ::testing::Values(End{
                             "stay 0 -n 2 --threads --leave-ms 300", 202,
                             "rank -1: rank 0 did not end within 300 ms after rank 1.*"}));

// A second and a half, which no load makes ten.
TEST_F(Spawn, ARankThatHangsIsKilledAfterTheGrace) {
  const auto begin = std::chrono::steady_clock::now();
  ProbeProcess& process = Start("stuck 0 -n 2 --default-grace");
  EXPECT_EQ(process.Wait(), 203) << process.output();
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(elapsed, std::chrono::seconds(1)) << "its time to leave";
  EXPECT_LT(elapsed, std::chrono::seconds(10));
}

TEST_F(Spawn, RanksThatListenMayFinishWhatTheyDo) {
  ProbeProcess& process = Start("tidy 1 -n 3");
  EXPECT_EQ(process.Wait(), 203);
  EXPECT_EQ(process.ReadLines("tidied", 2).size(), 2u);
}

// The group: as a terminal does it; twice: as timeout(1) and systemd do.
enum class To { kLauncher, kGroup, kTwice, kLastRank, kServer };

struct Stop {
  const char* words;
  size_t ranks;
  To to;
  int signal;
};

class SpawnStops : public ProbeTest, public ::testing::WithParamInterface<Stop> {};

TEST_P(SpawnStops, EveryRankAndThenTheServers) {
  const auto& [words, ranks, to, signal] = GetParam();
  const bool has_server = std::string(words).find("--servers") != std::string::npos;
  ProbeProcess& process = Start(words);
  const std::vector<std::string> pids = process.ReadLines("pid ", ranks);
  std::map<To, int> targets = {{To::kLauncher, process.pid()},
                               {To::kGroup, -process.pid()},
                               {To::kTwice, process.pid()},
                               {To::kLastRank, std::stoi(pids.back())}};
  if (has_server) targets[To::kServer] = std::stoi(LineOf(process, "server 0 pid "));
  kill(targets.at(to), signal);
  if (to == To::kTwice) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    kill(-process.pid(), signal);
  }
  EXPECT_EQ(process.Wait(), 128 + signal) << process.output();
  EXPECT_EQ(process.ReadLines("stop " + std::to_string(signal), ranks).size(), ranks);
  EXPECT_THAT(ErrorOf(process), HasSubstr("stopped after step 7"));
  if (has_server) {
    EXPECT_THAT(process.output(), HasSubstr("served 0\n"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, SpawnStops,
                         ::testing::Values(Stop{"wait -n 3", 3, To::kLauncher, SIGINT},
                                           Stop{"wait -n 3", 3, To::kLauncher, SIGTERM},
                                           Stop{"wait -n 2", 2, To::kGroup, SIGINT},
                                           Stop{"wait -n 2", 2, To::kTwice, SIGTERM},
                                           Stop{"wait -n 2", 2, To::kLauncher, SIGHUP},
                                           Stop{"wait -n 2 --threads", 2, To::kTwice, SIGTERM},
                                           Stop{"wait -n 3", 3, To::kLastRank, SIGTERM},
                                           Stop{"wait -n 2 --threads", 2, To::kLauncher, SIGINT},
                                           Stop{"wait -n 2 --servers 1", 2, To::kLauncher, SIGINT},
                                           Stop{"wait -n 2 --servers 1", 2, To::kGroup, SIGINT},
                                           Stop{"wait -n 2 --servers 1", 2, To::kServer, SIGTERM}));

TEST_F(Spawn, ASecondStopSignalKills) {
  for (const std::string words : {"deaf -n 2", "deaf -n 2 --servers 2", "deaf -n 2 --threads"}) {
    ProbeProcess& process = Start(words);
    process.ReadLines("pid ", 2);
    if (words.ends_with("--servers 2")) process.ReadLines("server ", 2);
    kill(process.pid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));  // as a person does it
    kill(process.pid(), SIGTERM);
    EXPECT_EQ(process.Wait(), 143) << words;
    if (words.ends_with("--threads")) continue;  // nobody is left to say it
    EXPECT_THAT(ErrorOf(process), HasSubstr("stopped at once by a second SIGTERM"));
  }
}

TEST_F(Spawn, RanksThatDoNotStopAreEndedInTheirTime) {
  ProbeProcess& process = Start("deaf -n 2 --stop-ms 300");
  process.ReadLines("pid ", 2);
  kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.Wait(), 143) << process.output();
  EXPECT_THAT(ErrorOf(process), HasSubstr("ranks 0, 1 did not end within 300 ms after SIGTERM"));
}

TEST_F(Spawn, AStopBeforeAllAreThereIsAStop) {
  const std::string at = "127.0.0.1:" + std::to_string(FreePort());
  ProbeProcess& process = Start("wait -n 2 --servers 1 --serve-at " + at);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.Wait(), 143) << process.output();
}

// Ctrl-Z, or a machine that is paused: the watchers stood still too.
TEST_F(Spawn, APauseOfAllEndsNothing) {
  ProbeProcess& process = Start("wait -n 2 --liveness-ms 2500");
  process.ReadLines("pid ", 2);
  kill(-process.pid(), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(5000));
  kill(-process.pid(), SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.Wait(), 143) << process.output();
}

TEST_F(Spawn, TooFewDescriptorsIsASentence) {
  ProbeProcess process({"/bin/sh", "-c", "ulimit -n 24; exec \"$0\" ring -n 40", LAUNCH_PROBE});
  EXPECT_EQ(process.Wait(), 203) << process.output();
  EXPECT_THAT(ErrorOf(process),
              HasSubstr("raise the limit of this process: 24 open files (ulimit -n)"));
}

TEST_F(Spawn, ALostRankDoesNotEndARunThatSurvivesIt) {
  ProbeProcess& process = Start("lossy 2 --deaths 1 -n 3 --servers 1");
  EXPECT_EQ(process.Wait(), 0) << process.output();
  EXPECT_THAT(LineOf(process, "notice: "),
              MatchesRegex("rank 2" + kKilled + "; the run goes on without it"));
  EXPECT_THAT(process.output(), AllOf(HasSubstr("served 0\n"), Not(HasSubstr("error: "))));
}

TEST_F(Spawn, ALostRankIsStartedAgain) {
  ProbeProcess& process = Start("lossy 1 --deaths 2 --restarts 3 -n 3 --servers 1");
  EXPECT_EQ(process.Wait(), 0) << process.output();
  EXPECT_THAT(process.ReadLines("notice: ", 2),
              ::testing::ElementsAre(HasSubstr("(Killed); started again (1 of 3)"),
                                     HasSubstr("(Killed); started again (2 of 3)")));
  EXPECT_THAT(process.output(), HasSubstr("incarnation 2\n"));
}

TEST_F(Spawn, RestartsRunOut) {
  ProbeProcess& process = Start("lossy 1 --deaths 9 --restarts 1 -n 2");
  EXPECT_EQ(process.Wait(), 0) << process.output();
  EXPECT_THAT(
      process.ReadLines("notice: ", 2),
      ::testing::ElementsAre(HasSubstr("started again (1 of 1)"),
                             HasSubstr("the run goes on without it, after all of its 1 restart")));
  EXPECT_THAT(process.output(), Not(HasSubstr("incarnation")));
}

}  // namespace
}  // namespace engine
