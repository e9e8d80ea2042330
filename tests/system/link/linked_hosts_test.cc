// Hosts of namespaces: that links have their rate, that drops are counted, and that nothing stays
// behind, however the owner ends.
#include "bench/link/linked_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "bench/link/program.h"
#include "tests/support/probe_process.h"
#include "tests/system/link/why_not.h"

namespace engine::bench {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class LinkedHostsTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = WhyNoNamespaces();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  static std::unique_ptr<LinkedHosts> Make(const LinkOptions& options) {
    auto hosts = LinkedHosts::Create(options);
    EXPECT_TRUE(hosts.ok()) << hosts.status().message();
    return hosts.ok() ? std::move(*hosts) : nullptr;
  }

  static LinkCounters Count(const LinkedHosts& hosts) {
    const auto counters = hosts.Counters();
    EXPECT_TRUE(counters.ok()) << counters.status().message();
    return counters.ok() ? *counters : LinkCounters();
  }
};

std::vector<std::string> ProbeOn(const LinkedHosts& hosts, int host,
                                 const std::vector<std::string>& arguments) {
  std::vector<std::string> command = hosts.CommandPrefix(host);
  command.push_back(ENGINE_LINK_PROBE);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

bool NamespaceExists(const std::string& name) {
  return fs::exists(fs::path("/run/netns") / name);
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

bool IsAlive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(stat), {}};
  const size_t end = text.rfind(')');
  return end != std::string::npos && text.substr(end + 2, 1) != "Z";
}

// Processes that have both words in their arguments.
std::vector<pid_t> ProcessesWith(const std::string& first, const std::string& second) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream stream(entry.path() / "cmdline");
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    if (text.find(first) != std::string::npos && text.find(second) != std::string::npos) {
      found.push_back(pid);
    }
  }
  return found;
}

template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kDeadlineMs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
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
    const auto rate = ParseRate(text);
    ASSERT_FALSE(rate.ok()) << text;
    EXPECT_EQ(rate.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(rate.status().message(), HasSubstr("such as 375mbit"));
  }
}

TEST(LinkOptionsTest, WrongOnesAreRefusedBeforeAnythingIsMade) {
  for (const LinkOptions& options :
       {LinkOptions{.hosts = 0}, LinkOptions{.hosts = kMaxLinkedHosts + 1},
        LinkOptions{.rate = "fast"}, LinkOptions{.burst_bytes = 100},
        LinkOptions{.limit_bytes = 100}}) {
    const auto hosts = LinkedHosts::Create(options);
    ASSERT_FALSE(hosts.ok());
    EXPECT_EQ(hosts.status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(NamespacesOf(getpid()), IsEmpty());
}

TEST_F(LinkedHostsTest, WithoutRootOneSentenceSaysWhatToDo) {
  ProbeProcess probe({ENGINE_LINK_PROBE, "refuse"});
  const auto lines = probe.ReadLines("error ", 1);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("need root"));
  EXPECT_EQ(probe.Wait(), 0);
}

// 100 Mbit/s carry 4 MB in 335 ms, less what fits into the two buckets on the way.
TEST_F(LinkedHostsTest, TransfersRunAtTheRateOfTheLink) {
  constexpr double kBytes = 4e6;
  auto hosts = Make({.hosts = 2, .rate = "100mbit", .burst_bytes = 64 << 10});
  ASSERT_NE(hosts, nullptr);
  const LinkFacts& facts = hosts->facts();
  EXPECT_EQ(facts.bits_per_second, 100e6);
  const LinkCounters before = Count(*hosts);
  ProbeProcess server(ProbeOn(*hosts, 1, {"serve", "7000"}));
  ASSERT_EQ(server.ReadLines("ready", 1).size(), 1u);
  ProbeProcess client(ProbeOn(*hosts, 0, {"send", hosts->Address(1), "7000", "4000000"}));
  const auto rtt = client.ReadLines("rtt_us ", 1);
  const auto congestion = client.ReadLines("congestion ", 1);
  const auto seconds = client.ReadLines("seconds ", 1);
  ASSERT_EQ(client.Wait(), 0) << client.output();
  ASSERT_EQ(server.Wait(), 0) << server.output();
  const LinkCounters counted = Difference(before, Count(*hosts));

  const double goodput = 8 * kBytes / std::atof(seconds.at(0).c_str());
  RecordProperty("goodput", std::to_string(goodput));
  RecordProperty("rtt_us", rtt.at(0));
  const double at_most = facts.goodput_bits_per_second * kBytes /
                         (kBytes - 2 * static_cast<double>(facts.burst_bytes));
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
  ASSERT_NE(hosts, nullptr);
  EXPECT_EQ(Count(*hosts).dropped_packets, 0u);
  ProbeProcess flood(ProbeOn(*hosts, 0, {"flood", hosts->Address(1), "7001", "500"}));
  ASSERT_EQ(flood.Wait(), 0) << flood.output();
  EXPECT_GT(Count(*hosts).dropped_packets, 0u);
}

TEST_F(LinkedHostsTest, AHostSeesTheOthersAndNotTheMachine) {
  auto hosts = Make({.hosts = 3, .rate = "1gbit"});
  ASSERT_NE(hosts, nullptr);
  std::vector<std::string> command = hosts->CommandPrefix(2);
  command.insert(command.end(), {FindProgram("ip"), "-br", "-4", "address"});
  const auto addresses = RunProgram(command);
  ASSERT_TRUE(addresses.ok()) << addresses.status().message();
  EXPECT_THAT(*addresses, HasSubstr("eth0"));
  EXPECT_THAT(*addresses, HasSubstr(hosts->Address(2) + "/24"));
  command = hosts->CommandPrefix(2);
  command.insert(command.end(), {FindProgram("ip"), "route"});
  const auto routes = RunProgram(command);
  ASSERT_TRUE(routes.ok()) << routes.status().message();
  EXPECT_THAT(*routes, Not(HasSubstr("default")));
}

// Communicators publish the address that their host's name stands for.
TEST_F(LinkedHostsTest, TheNameOfAHostIsItsAddressOnTheLink) {
  auto hosts = Make({.hosts = 2});
  ASSERT_NE(hosts, nullptr);
  char own[256] = {};
  ASSERT_EQ(gethostname(own, sizeof own - 1), 0);
  const auto address_of = [&](const std::string& name) {
    std::vector<std::string> command = hosts->CommandPrefix(1);
    command.insert(command.end(), {FindProgram("getent"), "ahostsv4", name});
    const auto output = RunProgram(command);
    return output.ok() ? output->substr(0, output->find(' ')) : output.status().message();
  };
  EXPECT_EQ(address_of(own), hosts->Address(1));
  EXPECT_EQ(address_of("host0"), hosts->Address(0));
  EXPECT_EQ(address_of("localhost"), "127.0.0.1");
}

TEST_F(LinkedHostsTest, TwoSetsOfHostsDoNotMeet) {
  auto first = Make({.hosts = 2}), second = Make({.hosts = 2});
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(NamespacesOf(getpid()).size(), 6u);
  ProbeProcess server(ProbeOn(*first, 1, {"serve", "7000"}));
  ASSERT_EQ(server.ReadLines("ready", 1).size(), 1u);
  ProbeProcess client(ProbeOn(*second, 0, {"send", second->Address(1), "7000", "1000"}));
  EXPECT_EQ(client.Wait(), 1);
  EXPECT_THAT(client.output(), HasSubstr("failed connect"));
  first.reset();
  EXPECT_EQ(NamespacesOf(getpid()).size(), 3u);
}

TEST_F(LinkedHostsTest, NothingIsLeftBehindAProcessThatStillRuns) {
  auto hosts = Make({.hosts = 2});
  ASSERT_NE(hosts, nullptr);
  std::vector<std::string> command = hosts->CommandPrefix(0);
  command.insert(command.end(), {"sleep", "1000"});
  ProbeProcess sleeper(command);
  ASSERT_TRUE(Eventually([&] { return !ProcessesWith("sleep", "1000").empty(); }));
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
    return Eventually([&] {
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
  ASSERT_TRUE(NamespaceExists(hosts_[0]));
  ASSERT_NE(Make({.hosts = 1}), nullptr);
  EXPECT_TRUE(AllGone());
}

}  // namespace
}  // namespace engine::bench
