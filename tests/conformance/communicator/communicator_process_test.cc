// Ranks as processes: what the survivors of a killed rank get.
#include <signal.h>

#include <chrono>

#include "tests/conformance/communicator/communicator_rig.h"
#include "tests/support/temp_folder.h"

namespace engine::test {
namespace {

class CommunicatorProcess : public ::testing::TestWithParam<std::string> {
 protected:
  // Rank `victim` of `size` sends itself `signal` with transfers under way; the others have to name
  // it.
  static std::vector<pid_t> StartRanks(const engine::testing::TempFolder& folder, int size,
                                       int victim, int signal, int64_t timeout_ms) {
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(RankProcess{.path = GetParam(),
                                  .folder = folder.path(),
                                  .rank = rank,
                                  .size = size,
                                  .blames = victim,
                                  .timeout_ms = timeout_ms,
                                  .signal = rank == victim ? signal : 0}
                          .Start());
    }
    return ranks;
  }
};

TEST_P(CommunicatorProcess, SurvivorsOfAKilledRankNameItPromptly) {
  constexpr int kSize = 3;
  for (const int victim : {0, kSize - 1}) {
    const engine::testing::TempFolder folder;
    std::vector<pid_t> ranks = StartRanks(folder, kSize, victim, SIGKILL, 20000);
    const int end = EndOf(ranks[static_cast<size_t>(victim)]);
    ranks.erase(ranks.begin() + victim);
    const auto death = std::chrono::steady_clock::now();
    const bool measures = end == RankProcess::kMeasuresOnly;
    const int expected = measures ? end : static_cast<int>(StatusCode::kPeerLost);
    for (const pid_t survivor : ranks) EXPECT_EQ(EndOf(survivor), expected);
    if (measures) GTEST_SKIP() << "ranks never meet";
    EXPECT_EQ(end, 128 + SIGKILL);
    EXPECT_LT(std::chrono::steady_clock::now() - death, std::chrono::seconds(5));
  }
}

// Whoever waits for whom: every rank names the one that is stopped.
TEST_P(CommunicatorProcess, ARankThatIsStoppedIsATimeoutThatNamesIt) {
  if (NameOfLibrary(GetParam()) == "libengine_zmq_ps") GTEST_SKIP() << "see kill_matrix";
  const engine::testing::TempFolder folder;
  const std::vector<pid_t> ranks = StartRanks(folder, 4, 2, SIGSTOP, 1500);
  for (const size_t rank : {0, 1, 3}) {
    EXPECT_EQ(EndOf(ranks[rank]), static_cast<int>(StatusCode::kTimeout)) << "rank " << rank;
  }
  kill(ranks[2], SIGKILL);
  EXPECT_EQ(EndOf(ranks[2]), 128 + SIGKILL);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorProcess);
INSTANTIATE_TEST_SUITE_P(Libraries, CommunicatorProcess,
                         ::testing::ValuesIn(PluginPaths({CONNECTING_COMMUNICATORS})),
                         kNameOfLibrary);

}  // namespace
}  // namespace engine::test
