// Ranks as processes: what the survivors of a killed rank get.
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/conform/communicator/communicator_rig.h"
#include "tools/conform/contract.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/communicator.h";

class TemporaryFolder {
 public:
  TemporaryFolder() {
    EXPECT_NE(mkdtemp(path_.data()), nullptr) << "no temporary folder: " << path_;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "engine_conform_XXXXXX").native();
};

// Rank `victim` of `size` sends itself `signal` with transfers under way; the others have to name
// it.
std::vector<pid_t> StartRanks(const TemporaryFolder& folder, int size, int victim, int signal,
                              int64_t timeout_ms) {
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(RankProcess{.plugin = UnderTest().plugin,
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

TEST(CommunicatorProcess, SurvivorsOfAKilledRankNameItPromptly) {
  SHOULD(
      "When a rank aborts or its process dies, the transfers of others that need it "
      "should fail within a second, with kPeerLost and its rank, and not only by their "
      "deadline.");
  constexpr int64_t kTooLateMs = 6000;  // more than kPromptly: a timeout of its own is too late
  const int size = OneSize(2, 3);
  for (const int victim : {0, size - 1}) {
    if (HasFailure()) break;  // once is enough to know, and takes kTooLateMs
    const TemporaryFolder folder;
    std::vector<pid_t> ranks = StartRanks(folder, size, victim, SIGKILL, kTooLateMs);
    EXPECT_EQ(EndOf(ranks[static_cast<size_t>(victim)]), 128 + SIGKILL);
    ranks.erase(ranks.begin() + victim);
    const auto death = std::chrono::steady_clock::now();
    for (const pid_t survivor : ranks) {
      EXPECT_EQ(EndOf(survivor), static_cast<int>(StatusCode::kPeerLost));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - death, kPromptly);
  }
}

// Whoever waits for whom: every rank names the one that is stopped.
TEST(CommunicatorProcess, ARankThatIsStoppedIsATimeoutThatNamesIt) {
  SHOULD("A kTimeout should name the rank that has not moved, on every rank.");
  const int size = OneSize(2, 4), stopped = size / 2;
  const TemporaryFolder folder;
  const std::vector<pid_t> ranks = StartRanks(folder, size, stopped, SIGSTOP, 1500);
  for (int rank = 0; rank < size; ++rank) {
    if (rank == stopped) continue;
    EXPECT_EQ(EndOf(ranks[static_cast<size_t>(rank)]), static_cast<int>(StatusCode::kTimeout))
        << "rank " << rank;
  }
  kill(ranks[static_cast<size_t>(stopped)], SIGKILL);
  EXPECT_EQ(EndOf(ranks[static_cast<size_t>(stopped)]), 128 + SIGKILL);
}

}  // namespace
}  // namespace engine::conform
