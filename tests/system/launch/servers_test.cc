// Servers and lost ranks of a run of processes, and servers that join it from elsewhere.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/support/probe_process.h"
#include "tests/support/temp_folder.h"

namespace engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class Servers : public ::testing::Test {
 protected:
  void SetUp() override { AdoptOrphans(); }
  void TearDown() override { EXPECT_TRUE(AwaitNoDescendants()); }

  static std::vector<std::string> Probe(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), LAUNCH_PROBE);
    return arguments;
  }
  static std::string LineOf(ProbeProcess& process, const char* prefix) {
    std::vector<std::string> lines = process.ReadLines(prefix, 1);
    EXPECT_EQ(lines.size(), 1u) << process.output();
    return lines.empty() ? "" : lines[0];
  }
  static size_t Count(const std::string& text, const std::string& what) {
    size_t count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
      ++count;
    }
    return count;
  }
};

TEST_F(Servers, AreProcessesBesideTheRanks) {
  ProbeProcess process(Probe({"ring", "-n", "2", "--servers", "2"}));
  EXPECT_EQ(process.Wait(), 0) << process.output();
  EXPECT_EQ(process.ReadLines("pid ", 2).size(), 2u);
  EXPECT_THAT(process.output(), AllOf(HasSubstr("server 0 pid "), HasSubstr("server 1 pid ")));
  EXPECT_EQ(Count(process.output(), "run of 2 ranks, 2 servers, one host 1\n"), 2u);
  EXPECT_EQ(Count(process.output(), "served 0\n"), 2u);
}

TEST_F(Servers, AKilledOneIsNamedWithItsSignal) {
  for (const char* victim : {"0", "1"}) {
    ProbeProcess process(Probe({"server-kill", victim, "-n", "2", "--servers", "2"}));
    EXPECT_EQ(process.Wait(), 137) << process.output();
    EXPECT_THAT(LineOf(process, "error: "), AllOf(HasSubstr(std::string("server ") + victim),
                                                  HasSubstr("was killed by signal 9 (Killed)")));
  }
}

TEST_F(Servers, OneThatStaysIsKilledAndNamed) {
  ProbeProcess process(Probe({"server-stay", "-n", "2", "--servers", "1"}));
  EXPECT_EQ(process.Wait(), 202) << process.output();
  EXPECT_EQ(LineOf(process, "error: "),
            "server 0: it did not leave within 300 ms after the last rank");
}

TEST_F(Servers, StopAfterTheRanks) {
  for (int target : {-1, 1}) {  // the process group, the launcher
    ProbeProcess process(Probe({"wait", "-n", "2", "--servers", "1"}));
    process.ReadLines("pid ", 2);
    process.ReadLines("server ", 1);
    kill(target * process.pid(), SIGINT);
    EXPECT_EQ(process.Wait(), 130) << process.output();
    EXPECT_EQ(process.ReadLines("stop 2", 2).size(), 2u);
    EXPECT_THAT(process.output(), HasSubstr("served 0\n"));
  }
}

TEST_F(Servers, AStopSignalToAServerStopsTheRanks) {
  ProbeProcess process(Probe({"wait", "-n", "2", "--servers", "1"}));
  process.ReadLines("pid ", 2);
  const std::string pid = LineOf(process, "server 0 pid ");
  kill(std::stoi(pid), SIGTERM);
  EXPECT_EQ(process.Wait(), 143) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("served 0\n"));
}

TEST_F(Servers, ASecondStopSignalKillsThemToo) {
  ProbeProcess process(Probe({"deaf", "-n", "1", "--servers", "2"}));
  process.ReadLines("pid ", 1);
  process.ReadLines("server ", 2);
  kill(process.pid(), SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // two, not one pending twice
  kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.Wait(), 143);
}

TEST_F(Servers, ALostRankDoesNotEndARunThatSurvivesIt) {
  ProbeProcess process(Probe({"lossy", "2", "--deaths", "1", "-n", "3", "--servers", "1"}));
  EXPECT_EQ(process.Wait(), 0) << process.output();
  EXPECT_THAT(LineOf(process, "notice: "),
              MatchesRegex("rank 2: its process \\(pid [0-9]+\\) was killed by signal 9 "
                           "\\(Killed\\); the run goes on without it"));
  EXPECT_THAT(process.output(), AllOf(HasSubstr("served 0\n"), Not(HasSubstr("error: "))));
}

TEST_F(Servers, ALostRankIsStartedAgain) {
  ProbeProcess process(
      Probe({"lossy", "1", "--deaths", "2", "--restarts", "3", "-n", "3", "--servers", "1"}));
  EXPECT_EQ(process.Wait(), 0) << process.output();
  const std::vector<std::string> notices = process.ReadLines("notice: ", 2);
  ASSERT_EQ(notices.size(), 2u) << process.output();
  EXPECT_THAT(notices[0], HasSubstr("(Killed); started again (1 of 3)"));
  EXPECT_THAT(notices[1], HasSubstr("(Killed); started again (2 of 3)"));
  EXPECT_THAT(process.output(), HasSubstr("incarnation 2\n"));
}

TEST_F(Servers, RestartsRunOut) {
  ProbeProcess process(Probe({"lossy", "1", "--deaths", "9", "--restarts", "1", "-n", "2"}));
  EXPECT_EQ(process.Wait(), 0) << process.output();
  const std::vector<std::string> notices = process.ReadLines("notice: ", 2);
  ASSERT_EQ(notices.size(), 2u) << process.output();
  EXPECT_THAT(notices[0], HasSubstr("started again (1 of 1)"));
  EXPECT_THAT(notices[1], HasSubstr("the run goes on without it, after all of its 1 restart"));
  EXPECT_THAT(process.output(), Not(HasSubstr("incarnation")));
}

TEST_F(Servers, ALostRankZeroAlwaysEndsTheRun) {
  ProbeProcess process(
      Probe({"lossy", "0", "--deaths", "1", "--restarts", "5", "-n", "3", "--servers", "1"}));
  EXPECT_EQ(process.Wait(), 137) << process.output();
  EXPECT_THAT(LineOf(process, "error: "), HasSubstr("rank 0: its process (pid "));
  EXPECT_THAT(process.output(), Not(HasSubstr("notice: ")));
}

TEST_F(Servers, ALostServerEndsARunThatSurvivesLostRanks) {
  ProbeProcess process(Probe({"lossy", "1", "--deaths", "0", "-n", "2", "--servers", "1"}));
  EXPECT_EQ(process.Wait(), 0) << process.output();
  ProbeProcess waiting(Probe({"wait", "-n", "2", "--servers", "1"}));
  waiting.ReadLines("pid ", 2);
  const std::string pid = LineOf(waiting, "server 0 pid ");
  kill(std::stoi(pid), SIGKILL);
  EXPECT_EQ(waiting.Wait(), 137);
  EXPECT_THAT(LineOf(waiting, "error: "), HasSubstr("server 0: its process (pid " + pid + ")"));
}

// Servers that join a run of processes.
class ServeAt : public Servers {
 protected:
  std::vector<std::string> RunWith(const std::string& scenario, const std::string& servers,
                                   std::vector<std::string> more = {}) const {
    std::vector<std::string> command =
        Probe({scenario, "-n", "2", "--servers", servers, "--serve-at", address_});
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  std::vector<std::string> ServeWith(const std::string& scenario, const std::string& index,
                                     std::vector<std::string> more = {}) const {
    std::vector<std::string> command = Probe({scenario, "--serve", address_, "--index", index});
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  // A connection to the run, which is listening soon.
  int Connect() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kDeadlineMs);
    while (std::chrono::steady_clock::now() < deadline) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
      close(fd);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return -1;
  }

  const int port_ = FreePort();
  const std::string address_ = "127.0.0.1:" + std::to_string(port_);
  engine::testing::TempFolder folder_;
  const std::string key_ = folder_ / "key";
};

TEST_F(ServeAt, ServersJoinOverTheNetwork) {
  ProbeProcess second(ServeWith("ring", "1"));  // before there is a run
  ProbeProcess run(RunWith("ring", "2"));
  ProbeProcess first(ServeWith("ring", "0"));
  EXPECT_EQ(run.Wait(), 0) << run.output();
  for (ProbeProcess* server : {&first, &second}) {
    EXPECT_EQ(server->Wait(), 0) << server->output();
    EXPECT_THAT(server->output(), HasSubstr("run of 2 ranks, 2 servers, one host 1\n"));
    EXPECT_THAT(server->output(), HasSubstr("served 0\n"));
  }
}

TEST_F(ServeAt, AMissingServerIsNamed) {
  ProbeProcess run(RunWith("ring", "2", {"--rendezvous-ms", "1500"}));
  ProbeProcess server(ServeWith("ring", "0"));
  EXPECT_EQ(run.Wait(), 201) << run.output();
  EXPECT_THAT(LineOf(run, "error: "), HasSubstr("server 1 did not join at " + address_));
  EXPECT_EQ(server.Wait(), 201) << server.output();
  EXPECT_THAT(LineOf(server, "error: "), HasSubstr("server 1 did not join at"));
}

TEST_F(ServeAt, ALostServerIsNamed) {
  ProbeProcess run(RunWith("server-kill", "1"));
  ProbeProcess server(ServeWith("server-kill", "0"));
  EXPECT_EQ(server.Wait(), 137);
  EXPECT_EQ(run.Wait(), 200) << run.output();
  EXPECT_EQ(LineOf(run, "error: "), "server 0: its connection to the launcher ended");
}

TEST_F(ServeAt, AServerHearsOfTheEndOfItsRun) {
  ProbeProcess run(RunWith("wait", "1"));
  ProbeProcess server(ServeWith("wait", "0"));
  const std::vector<std::string> pids = run.ReadLines("pid ", 2);
  ASSERT_EQ(pids.size(), 2u);
  kill(std::stoi(pids[1]), SIGKILL);
  EXPECT_EQ(run.Wait(), 137);
  EXPECT_NE(server.Wait(), 0);
  EXPECT_THAT(LineOf(server, "error: "), HasSubstr("was killed by signal 9"));
}

TEST_F(ServeAt, ASecondServerOfOneIndexIsRefused) {
  ProbeProcess run(RunWith("ring", "2"));
  ProbeProcess first(ServeWith("ring", "0"));
  ProbeProcess second(ServeWith("ring", "0"));
  // Either of them may have been the first.
  const std::string notice = LineOf(run, "notice: ");
  EXPECT_THAT(notice, HasSubstr("two processes say that they are server 0"));
  ProbeProcess other(ServeWith("ring", "1"));
  EXPECT_EQ(run.Wait(), 0) << run.output();
  std::vector<int> codes = {first.Wait(), second.Wait()};
  std::sort(codes.begin(), codes.end());
  EXPECT_EQ(codes, (std::vector<int>{0, 201}));
  EXPECT_THAT(first.output() + second.output(), HasSubstr("give every server its own --index"));
  EXPECT_EQ(other.Wait(), 0) << other.output();
}

TEST_F(ServeAt, AnIndexBeyondTheServersIsRefused) {
  ProbeProcess run(RunWith("ring", "1"));
  ProbeProcess beyond(ServeWith("ring", "7"));
  EXPECT_EQ(beyond.Wait(), 201);
  EXPECT_THAT(LineOf(beyond, "error: "), HasSubstr("there is no server 7 in a run with 1 servers"));
  ProbeProcess server(ServeWith("ring", "0"));
  EXPECT_EQ(run.Wait(), 0) << run.output();
  EXPECT_EQ(server.Wait(), 0);
}

TEST_F(ServeAt, OffLoopbackAKeyIsRequired) {
  ProbeProcess run(
      Probe({"ring", "--servers", "1", "--serve-at", "0.0.0.0:" + std::to_string(port_)}));
  EXPECT_EQ(run.Wait(), 2) << run.output();
  EXPECT_THAT(LineOf(run, "error: "), HasSubstr("give --key-file FILE here"));
}

TEST_F(ServeAt, TheKeyDecidesWhoServes) {
  ProbeProcess run(Probe({"ring", "-n", "2", "--servers", "1", "--serve-at",
                          "0.0.0.0:" + std::to_string(port_), "--key-file", key_}));
  close(Connect());  // it listens, so the key is there
  struct stat info {};
  ASSERT_EQ(stat(key_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777u, 0600u);
  ProbeProcess none(ServeWith("ring", "0"));
  EXPECT_EQ(none.Wait(), 201);
  EXPECT_THAT(LineOf(none, "error: "), HasSubstr("asks for a key"));

  folder_.Write("wrong", std::string(64, '7'));
  const std::string wrong = folder_ / "wrong";
  std::filesystem::permissions(wrong, std::filesystem::perms(0600));
  ProbeProcess other(ServeWith("ring", "0", {"--key-file", wrong}));
  EXPECT_EQ(other.Wait(), 201);
  EXPECT_THAT(LineOf(other, "error: "), HasSubstr("does not know the key of this run"));

  std::filesystem::permissions(wrong, std::filesystem::perms(0644));
  ProbeProcess open_file(ServeWith("ring", "0", {"--key-file", wrong}));
  EXPECT_EQ(open_file.Wait(), 78);
  EXPECT_THAT(LineOf(open_file, "error: "), HasSubstr("others than its owner"));

  ProbeProcess server(ServeWith("ring", "0", {"--key-file", key_}));
  EXPECT_EQ(run.Wait(), 0) << run.output();
  EXPECT_EQ(server.Wait(), 0) << server.output();
  EXPECT_THAT(server.output(), HasSubstr("one host 0\n"));
  EXPECT_THAT(run.output(), HasSubstr("notice: refused a connection from 127.0.0.1:"));
}

TEST_F(ServeAt, UnauthenticatedPeersHoldNothingUp) {
  ProbeProcess run(RunWith("ring", "1", {"--key-file", key_}));
  std::vector<int> others;
  for (int i = 0; i < 40; ++i) {
    others.push_back(Connect());
    ASSERT_GE(others.back(), 0);
    if (i % 2 == 0) {
      EXPECT_GT(send(others.back(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 0);
    }
  }
  ProbeProcess server(ServeWith("ring", "0", {"--key-file", key_}));
  EXPECT_EQ(run.Wait(), 0) << run.output();
  EXPECT_EQ(server.Wait(), 0) << server.output();
  const size_t lines = Count(run.output(), "notice: refused a connection from 127.0.0.1:");
  EXPECT_GE(lines, 1u);
  EXPECT_LT(lines, 20u) << "others fill the log";
  for (int other : others) close(other);
}

TEST_F(ServeAt, NobodyThereIsASentence) {
  ProbeProcess server(ServeWith("ring", "0", {"--rendezvous-ms", "200"}));
  EXPECT_EQ(server.Wait(), 201);
  EXPECT_THAT(LineOf(server, "error: "), HasSubstr("found no run at " + address_));
}

}  // namespace
}  // namespace engine
