// Hosts of namespaces: that links have their rate, that drops are counted, and that nothing stays
// behind, however the owner ends.
#include "bench/link/linked_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "bench/link/linked_ranks.h"
#include "bench/link/program.h"
#include "tests/support/engine_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/probe_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/words.h"
#include "tests/system/link/link_test.h"

namespace engine::bench {
namespace {

namespace fs = std::filesystem;
using engine::test::Await;
using engine::test::ReadWhole;

using LinkedHostsTest = LinkTest;

std::unique_ptr<LinkedHosts> Make(const LinkOptions& options) {
  return ValueOf(LinkedHosts::Create(options));
}

// A command on one of the hosts.
std::vector<std::string> On(const LinkedHosts& hosts, int host, const std::string& words) {
  std::vector<std::string> command = hosts.CommandPrefix(host);
  for (const std::string& word : Words(words)) command.push_back(word);
  return command;
}
std::vector<std::string> ProbeOn(const LinkedHosts& hosts, int host, const std::string& words) {
  return On(hosts, host, ENGINE_LINK_PROBE " " + words);
}

std::vector<std::string> EntriesOf(const char* folder, pid_t owner) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("engine-" + std::to_string(owner) + "-")) names.push_back(name);
  }
  return names;
}

std::vector<std::string> NamespacesOf(pid_t owner) {
  return EntriesOf("/run/netns", owner);
}

std::vector<std::string> FilesOf(pid_t owner) {
  return EntriesOf("/etc/netns", owner);
}

// Processes that have both words in their arguments.
std::vector<pid_t> ProcessesWith(const std::string& first, const std::string& second) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    const std::string text = ReadWhole(entry.path() / "cmdline");
    if (text.find(first) != std::string::npos && text.find(second) != std::string::npos) {
      found.push_back(pid);
    }
  }
  return found;
}

TEST(LinkRateTest, ReadsTheUnitsOfTc) {
  EXPECT_EQ(*ParseRate("375mbit"), 375e6);
  EXPECT_EQ(*ParseRate("1gbit"), 1e9);
  EXPECT_EQ(*ParseRate("110Mbit"), 110e6);
  EXPECT_EQ(*ParseRate("2.5Gbit"), 2.5e9);
  EXPECT_EQ(*ParseRate("500kbit"), 5e5);
}

TEST(LinkRateTest, RefusesWhatIsNotARate) {
  for (const char* text : {"", "fast", "100", "mbit", "-1mbit", "0mbit", "1mbyte", "5 mbit", "1bit",
                           "nanmbit", "infgbit", "1e30gbit"}) {
    EXPECT_THAT(ParseRate(text),
                FailsWith(StatusCode::kInvalidArgument, HasSubstr("such as 375mbit")))
        << text;
  }
}

TEST(LinkOptionsTest, WrongOnesAreRefusedBeforeAnythingIsMade) {
  for (const LinkOptions& options :
       {LinkOptions{.hosts = 0}, LinkOptions{.hosts = kMaxLinkedHosts + 1},
        LinkOptions{.rate = "fast"}, LinkOptions{.burst_bytes = 100},
        LinkOptions{.limit_bytes = 100}}) {
    EXPECT_THAT(LinkedHosts::Create(options), FailsWith(StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(NamespacesOf(getpid()), IsEmpty());
}

TEST_F(LinkedHostsTest, WithoutRootOneSentenceSaysWhatToDo) {
  ProbeProcess probe({ENGINE_LINK_PROBE, "refuse"});
  EXPECT_EQ(probe.Wait(), 0);
  EXPECT_THAT(probe.output(), HasSubstr("need root"));
}

// 100 Mbit/s carry 4 MB in 335 ms, less what fits into the two buckets on the way.
TEST_F(LinkedHostsTest, TransfersRunAtTheRateOfTheLink) {
  constexpr double kBytes = 4e6, kBurst = 64 << 10;
  auto hosts = Make({.hosts = 2, .rate = "100mbit", .burst_bytes = 64 << 10});
  const LinkFacts& facts = hosts->facts();
  EXPECT_EQ(facts.bits_per_second, 100e6);
  const LinkCounters before = ValueOf(hosts->Counters());
  ProbeProcess server(ProbeOn(*hosts, 1, "serve 7000"));
  ASSERT_EQ(server.ReadLines("ready", 1).size(), 1u);
  ProbeProcess client(ProbeOn(*hosts, 0, "send " + hosts->Address(1) + " 7000 4000000"));
  const auto rtt = client.ReadLines("rtt_us ", 1);
  const auto congestion = client.ReadLines("congestion ", 1);
  const auto seconds = client.ReadLines("seconds ", 1);
  ASSERT_EQ(client.Wait(), 0) << client.output();
  ASSERT_EQ(server.Wait(), 0) << server.output();
  const LinkCounters counted = Difference(before, ValueOf(hosts->Counters()));

  const double goodput = 8 * kBytes / std::atof(seconds.at(0).c_str());
  RecordProperty("goodput", std::to_string(goodput));
  RecordProperty("rtt_us", rtt.at(0));
  const double at_most = facts.goodput_bits_per_second * kBytes / (kBytes - 2 * kBurst);
  EXPECT_LE(goodput, at_most);
  EXPECT_GE(goodput, 0.5 * facts.goodput_bits_per_second);  // a busy machine may be late
  EXPECT_LT(std::atof(rtt.at(0).c_str()), 10e3);
  EXPECT_EQ(congestion.at(0), facts.congestion);
  EXPECT_EQ(counted.dropped_packets, 0u);
  EXPECT_GE(counted.sent_bytes, 2 * static_cast<uint64_t>(kBytes));  // two links
  EXPECT_LE(counted.sent_bytes, static_cast<uint64_t>(2.3 * kBytes));
}

TEST_F(LinkedHostsTest, ALinkThatIsTooShortOfBufferCountsItsDrops) {
  auto hosts = Make({.hosts = 2, .rate = "1mbit", .burst_bytes = 4 << 10, .limit_bytes = 8 << 10});
  EXPECT_EQ(ValueOf(hosts->Counters()).dropped_packets, 0u);
  ProbeProcess flood(ProbeOn(*hosts, 0, "flood " + hosts->Address(1) + " 7001 500"));
  ASSERT_EQ(flood.Wait(), 0) << flood.output();
  EXPECT_GT(ValueOf(hosts->Counters()).dropped_packets, 0u);
}

TEST_F(LinkedHostsTest, AHostSeesTheOthersAndNotTheMachine) {
  auto hosts = Make({.hosts = 3, .rate = "1gbit"});
  const std::string ip = FindProgram("ip");
  EXPECT_THAT(ValueOf(RunProgram(On(*hosts, 2, ip + " -br -4 address"))),
              AllOf(HasSubstr("eth0"), HasSubstr(hosts->Address(2) + "/24")));
  EXPECT_THAT(ValueOf(RunProgram(On(*hosts, 2, ip + " route"))), Not(HasSubstr("default")));
}

TEST_F(LinkedHostsTest, SeveralRanksShareAHost) {
  const auto hosts = Make({});
  const auto ranks = RanksOnHosts({.arguments = {"true"}}, *hosts, 4, "", /*ranks_per_host=*/2);
  ASSERT_EQ(ranks.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    const Command& command = ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(command.arguments, On(*hosts, rank / 2, "true"));
    EXPECT_EQ(command.environment.at("RANK"), std::to_string(rank));
    EXPECT_EQ(command.environment.at("LOCAL_RANK"), std::to_string(rank % 2));
    EXPECT_EQ(command.environment.at("LOCAL_WORLD_SIZE"), "2");
  }
}

TEST_F(LinkedHostsTest, TwoSetsOfHostsDoNotMeet) {
  auto first = Make({.hosts = 2}), second = Make({.hosts = 2});
  EXPECT_EQ(NamespacesOf(getpid()).size(), 6u);
  ProbeProcess server(ProbeOn(*first, 1, "serve 7000"));
  ASSERT_EQ(server.ReadLines("ready", 1).size(), 1u);
  ProbeProcess client(ProbeOn(*second, 0, "send " + second->Address(1) + " 7000 1000"));
  EXPECT_EQ(client.Wait(), 1);
  EXPECT_THAT(client.output(), HasSubstr("failed connect"));
  first.reset();
  EXPECT_EQ(NamespacesOf(getpid()).size(), 3u);
}

TEST_F(LinkedHostsTest, NothingIsLeftBehindAProcessThatStillRuns) {
  auto hosts = Make({.hosts = 2});
  ProbeProcess sleeper(On(*hosts, 0, "sleep 1000"));
  Await("the sleeper", [&] { return !ProcessesWith("sleep", "1000").empty(); });
  hosts.reset();
  EXPECT_THAT(NamespacesOf(getpid()), IsEmpty());
  EXPECT_EQ(sleeper.Wait(), 128 + SIGKILL);
}

class EndOfOwnerTest : public LinkedHostsTest {
 protected:
  void SetUp() override {
    LinkedHostsTest::SetUp();
    if (IsSkipped()) return;
    owner_ = std::make_unique<ProbeProcess>(
        std::vector<std::string>{ENGINE_LINK_PROBE, "own", "10mbit"});
    pid_ = owner_->pid();
    hosts_ = owner_->ReadLines("host ", 2);
    const auto sleeper = owner_->ReadLines("sleeper ", 1);
    ASSERT_EQ(hosts_.size(), 2u) << owner_->output();
    ASSERT_EQ(sleeper.size(), 1u);
    sleeper_ = std::atoi(sleeper[0].c_str());
    ASSERT_EQ(NamespacesOf(pid_).size(), 3u);
    ASSERT_EQ(FilesOf(pid_).size(), 2u);
  }

  bool AllGone() const {
    return Await("the end of all", [&] {
      return NamespacesOf(pid_).empty() && FilesOf(pid_).empty() && !IsAlive(sleeper_) &&
             ProcessesWith("engine-link-guard", hosts_[0]).empty();
    });
  }

  std::unique_ptr<ProbeProcess> owner_;
  std::vector<std::string> hosts_;
  pid_t pid_ = 0;  // of the owner; ProbeProcess forgets it when it ends
  pid_t sleeper_ = 0;
};

TEST_F(EndOfOwnerTest, AfterSigkillNothingIsLeft) {
  ASSERT_EQ(kill(pid_, SIGKILL), 0);
  EXPECT_EQ(owner_->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(AllGone());
}

// As the terminal sends it: to the whole foreground process group.
TEST_F(EndOfOwnerTest, AfterControlCNothingIsLeft) {
  ASSERT_EQ(kill(-pid_, SIGINT), 0);
  EXPECT_EQ(owner_->Wait(), 128 + SIGINT);
  EXPECT_TRUE(AllGone());
}

TEST_F(EndOfOwnerTest, WhatIsLeftWhenTheGuardWasKilledGoesWithTheNextOne) {
  const auto guards = ProcessesWith("engine-link-guard", hosts_[0]);
  ASSERT_EQ(guards.size(), 1u);
  ASSERT_EQ(kill(guards[0], SIGKILL), 0);
  ASSERT_EQ(kill(pid_, SIGKILL), 0);
  EXPECT_EQ(owner_->Wait(), 128 + SIGKILL);
  ASSERT_TRUE(fs::exists("/run/netns/" + hosts_[0]));
  Make({.hosts = 1});
  EXPECT_TRUE(AllGone());
}

}  // namespace
}  // namespace engine::bench
