#include "bench/collectives/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/launch/launch.h"
#include "app/launch/log.h"

namespace engine::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kFolder = ENGINE_TEST_PLUGIN_DIR;

TEST(Sizes, RiseByTheFactorWithoutRepetition) {
  SweepRequest request{.min_bytes = 4, .max_bytes = 64};
  EXPECT_THAT(Sizes(request, 2), ElementsAre(4, 8, 16, 32, 64));
  request.kind = TransferKind::kAllGather;  // one element of each of three ranks at least
  EXPECT_THAT(Sizes(request, 3), ElementsAre(12, 24, 60));
  request.factor = 4;
  request.kind = TransferKind::kAllReduce;
  EXPECT_THAT(Sizes(request, 3), ElementsAre(4, 16, 64));
}

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(BusFactor(TransferKind::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(BusFactor(TransferKind::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(TransferKind::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(TransferKind::kBroadcast, 4), 1);
}

TEST(FindContender, RefusesWhatCannotTakePart) {
  const auto refusal = [](const std::string& name, std::vector<std::string> overrides) {
    const auto found = FindContender("A", name, overrides, {kFolder});
    return found.ok() ? "accepted" : std::string(found.status().message());
  };
  EXPECT_EQ(refusal("null", {}), "accepted");
  EXPECT_EQ(refusal(std::string(kFolder) + "/libengine_null.so", {}), "accepted");
  EXPECT_THAT(refusal("nul", {}), HasSubstr("did you mean 'null'"));
  EXPECT_THAT(refusal("null", {"speed=3"}), HasSubstr("there is no option 'speed'"));
  EXPECT_THAT(refusal("null", {"speed"}), HasSubstr("KEY=VALUE"));
}

TEST(RunSweep, TakesTurnsOnAllRanks) {
  SweepRequest request{
      .min_bytes = 4, .max_bytes = 1024, .factor = 16, .seconds = 0.001, .blocks = 1};
  for (const char* label : {"A", "B"}) {
    auto contender = FindContender(label, "null", {}, {kFolder});
    ASSERT_TRUE(contender.ok()) << contender.status().message();
    request.contenders.push_back(std::move(*contender));
  }
  launch::LaunchPlan plan{.mode = launch::LaunchPlan::Mode::kThreads, .info = {.world_size = 2}};
  SweepResult result;
  size_t rows = 0;
  const launch::LaunchOutcome outcome =
      launch::Launch(plan, {}, [&](base::RankContext& rank) -> Status {
        rank.log = launch::MemberLog(rank.info);
        auto swept = RunSweep(request, rank, [&](const SweepRow&) { ++rows; });
        if (!swept.ok()) return swept.status();
        if (rank.info.rank == 0) result = std::move(*swept);
        return {};
      });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  ASSERT_EQ(result.rows.size(), 3u);  // 4, 64, 1024
  EXPECT_EQ(rows, 3u);
  EXPECT_EQ(result.wrong, 0);
  for (const SweepRow& row : result.rows) {
    for (const Placement placement : {kOutOfPlace, kInPlace}) {
      ASSERT_EQ(row.timings[placement].size(), 2u);
      ASSERT_TRUE(row.ratio[placement]);
      EXPECT_EQ(row.ratio[placement]->by_pair.size(), 2u);
      for (const Timing& timing : row.timings[placement]) {
        EXPECT_EQ(timing.wrong, -1);  // nothing is moved
        EXPECT_GE(timing.iterations, 6);
        EXPECT_GT(timing.us.median, 0);
        EXPECT_GE(timing.us.p99, timing.us.median);
      }
    }
  }
}

}  // namespace
}  // namespace engine::bench
