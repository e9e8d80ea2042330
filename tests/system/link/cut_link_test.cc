// Ranks on hosts whose link is cut, is away for a moment, or is slow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/system/link/link_test.h"

namespace engine::bench {
namespace {

using Ranks = std::vector<std::unique_ptr<ProbeProcess>>;

// Down: the host itself knows that it has no link. Unplugged: packets vanish on the way, and every
// link is up.
enum class Cut { kDown, kUnplugged };

class CutLinkTest : public LinkTest {
 protected:
  void Make(const LinkOptions& options) { hosts_ = ValueOf(LinkedHosts::Create(options)); }

  // With a net of `units` * (`units` + 42) parameters.
  Ranks Start(const std::string& communicator, int units, const std::string& steps,
              int timeout_ms) {
    const std::string width = std::to_string(units);
    const std::string config = folder_.Write(
        "run.pbtxt", "model { net { layer { linear { units: " + width +
                         " } } layer { relu {} } layer { linear { units: " + width +
                         " } } layer { linear { units: 10 } } } }\n"
                         "data { synthetic { shape: 32 classes: 10 } }\n"
                         "train { steps: " +
                         steps + " batch_per_rank: 4 learning_rate { base: 0.01 } }\n");
    Ranks ranks;
    for (int rank = 0; rank < hosts_->hosts(); ++rank) {
      ranks.push_back(
          StartRank(*hosts_, rank,
                    {config, "--plugins", communicator + ",fifo_sched,sgd,cpu_ops", "--set",
                     "communication.timeout_ms=" + std::to_string(timeout_ms)}));
    }
    return ranks;
  }

  // Of the link of `host`.
  void SetLink(int host, Cut cut, bool there) const {
    std::string name = hosts_->CommandPrefix(host).back(), link = "eth0";
    const std::string number = std::to_string(host), suffix = "host" + number;
    std::vector<std::string> change = {there ? "up" : "down"};
    if (cut == Cut::kUnplugged) {
      name = name.substr(0, name.size() - suffix.size()) + "switch";
      link = "port" + number;
      change =
          there ? std::vector<std::string>{"master", "br0"} : std::vector<std::string>{"nomaster"};
    }
    std::vector<std::string> command = {FindProgram("ip"), "-n", name, "link", "set", link};
    command.insert(command.end(), change.begin(), change.end());
    ASSERT_TRUE(RunProgram(command).ok());
  }

  std::unique_ptr<LinkedHosts> hosts_;

 private:
  engine::test::TempFolder folder_;
};

struct Case {
  const char* communicator;
  Cut cut;
  int host;
};

class CutLink : public CutLinkTest, public ::testing::WithParamInterface<Case> {};

// Of three ranks; those that still reach rank 0 hear from it who was lost.
TEST_P(CutLink, BothSidesEndInTimeAndNameWhomTheyLost) {
  constexpr int kTimeoutMs = 2000, kRanks = 3;
  const auto& [communicator, cut, host] = GetParam();
  Make({.hosts = kRanks});
  Ranks ranks = Start(communicator, 128, "100000000", kTimeoutMs);
  ASSERT_EQ(ranks[0]->ReadLines("step ", 1).size(), 1u);
  SetLink(host, cut, false);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int> codes;
  for (auto& rank : ranks) codes.push_back(rank->Wait());
  // One second is for a busy machine.
  EXPECT_LT(std::chrono::steady_clock::now() - begin,
            std::chrono::milliseconds(kTimeoutMs + 2000 + 1000));
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string lost = host != 0 ? std::to_string(host) : "[12]";
    const bool cut_off = rank != 0 && (rank == host || host == 0);
    EXPECT_THAT(
        ranks[rank]->output(),
        ::testing::ContainsRegex(cut_off ? "engine: rank 0: reported by rank .: .*lost rank 0 at "
                                           "10.0.0.1:29500, which gave no sign of life"
                                         : "engine: rank " + lost + ": it gave no sign of life"));
    // 202: a member is silent. 200: this one has lost the store of the run.
    EXPECT_EQ(codes[rank], cut_off ? 200 : 202) << ranks[rank]->output();
  }
}

INSTANTIATE_TEST_SUITE_P(
    , CutLink,
    ::testing::Values(Case{"tcp", Cut::kDown, 1}, Case{"tcp", Cut::kUnplugged, 0},
                      Case{"gloo", Cut::kDown, 0}, Case{"gloo", Cut::kUnplugged, 2},
                      Case{"zmq_ps", Cut::kDown, 0}, Case{"zmq_ps", Cut::kUnplugged, 1}));

TEST_F(CutLinkTest, ALinkThatComesBackInTimeEndsNothing) {
  Make({.hosts = 2});
  Ranks ranks = Start("tcp", 128, "100000000", 10000);
  ASSERT_EQ(ranks[0]->ReadLines("step ", 1).size(), 1u);
  SetLink(1, Cut::kUnplugged, false);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  SetLink(1, Cut::kUnplugged, true);
  // All finish their step.
  kill(ranks[0]->pid(), SIGTERM);
  for (auto& rank : ranks) EXPECT_EQ(rank->Wait(), 128 + SIGTERM) << rank->output();
}

class SlowLink : public CutLinkTest, public ::testing::WithParamInterface<const char*> {};

// 2 Mbit/s carry the parameters in 11.3 s, and the gradients in another 11.3 s. What moves is seen by
// the part, and one takes 0.4 s.
TEST_P(SlowLink, TransfersThatTakeLongerThanTheTimeoutAreNoFailure) {
  constexpr int kUnits = 800, kTimeoutMs = 1000;
  Make({.hosts = 2, .rate = "2mbit", .burst_bytes = 8 << 10, .limit_bytes = 64 << 10});
  const auto begin = std::chrono::steady_clock::now();
  Ranks ranks = Start(GetParam(), kUnits, "1", kTimeoutMs);
  for (auto& rank : ranks) EXPECT_EQ(rank->Wait(), 0) << rank->output();
  // So long that every deadline of a transfer has passed (core/exec/submitter.cc).
  EXPECT_GT(std::chrono::steady_clock::now() - begin,
            std::chrono::milliseconds(2 * (kTimeoutMs + 10000)));
  EXPECT_THAT(ranks[0]->output(), HasSubstr("step 1/1"));
}

INSTANTIATE_TEST_SUITE_P(, SlowLink, ::testing::Values("tcp", "gloo"));

}  // namespace
}  // namespace engine::bench
