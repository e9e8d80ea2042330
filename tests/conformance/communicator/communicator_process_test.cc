// Ranks as processes: what the survivors of a killed rank get.
#include <signal.h>

#include <chrono>

#include "tests/conformance/communicator/communicator_rig.h"
#include "tests/support/temp_folder.h"

namespace engine::test {
namespace {

class CommunicatorProcess : public ::testing::TestWithParam<std::string> {};

TEST_P(CommunicatorProcess, SurvivorsOfAKilledRankNameItPromptly) {
  constexpr int kSize = 3;
  for (const int victim : {0, kSize - 1}) {
    const engine::testing::TempFolder folder;
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < kSize; ++rank) {
      const RankProcess process{.path = GetParam(),
                                .folder = folder.path(),
                                .rank = rank,
                                .size = kSize,
                                .blames = victim,
                                .signal = rank == victim ? SIGKILL : 0};
      ranks.push_back(process.Start());
    }
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

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorProcess);
INSTANTIATE_TEST_SUITE_P(Libraries, CommunicatorProcess,
                         ::testing::ValuesIn(PluginPaths({CONNECTING_COMMUNICATORS})),
                         NameOfLibrary);

}  // namespace
}  // namespace engine::test
