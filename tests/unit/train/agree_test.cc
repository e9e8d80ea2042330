#include "core/train/agree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "app/launch/launch.h"

namespace engine::train {
namespace {

launch::LaunchOutcome RunThreads(const RankInfo& info,
                                 const std::function<Status(base::RankContext&)>& body) {
  return launch::Launch({.mode = launch::LaunchPlan::Mode::kThreads, .info = info}, {}, body);
}

TEST(CheckSameOnAllRanks, IsOkWhenAllAgree) {
  for (int world_size : {1, 3}) {
    launch::LaunchOutcome outcome =
        RunThreads({.world_size = world_size}, [](base::RankContext& context) {
          ENGINE_RETURN_IF_ERROR(CheckSameOnAllRanks(context, "plugins", "tcp 1.0", 10000));
          return CheckSameOnAllRanks(context, "model", "", 10000);
        });
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
  }
}

TEST(CheckSameOnAllRanks, EveryOddRankIsNamedAndNobodyWaitsForIt) {
  launch::LaunchOutcome outcome = RunThreads({.world_size = 4}, [&](base::RankContext& context) {
    const int rank = context.info.rank;
    const bool odd = rank == 1 || rank == 3;
    // The odd ones come last, one after the other.
    if (odd) (void)context.store.Get("2 is done", 10000);
    if (rank == 3) (void)context.store.Get("1 is done", 10000);
    const Status status =
        CheckSameOnAllRanks(context, "plugins", odd ? "tcp 2.0" : "tcp 1.0", 10000);
    EXPECT_EQ(status.ok(), !odd);
    if (odd) {
      const std::string name = "rank " + std::to_string(rank);
      EXPECT_EQ(status.message(), name + ": another configuration than rank 0 (plugins): " + name +
                                      " has 'tcp 2.0' and rank 0 has 'tcp 1.0'; start all of them "
                                      "with the same");
    }
    (void)context.store.Set(std::to_string(rank) + " is done", "");
    if (odd) (void)context.store.Get("3 is done", 10000);  // else the first ends the other
    return status;
  });
  EXPECT_EQ(outcome.exit_code, 78);
}

TEST(CheckSameOnAllRanks, RankZeroIsNamedWhenItDoesNotCome) {
  launch::LaunchOutcome outcome =
      RunThreads({.world_size = 2}, [](base::RankContext& context) -> Status {
        if (context.info.rank == 0) return {};
        return CheckSameOnAllRanks(context, "plugins", "x", 20);
      });
  EXPECT_EQ(outcome.status.code(), StatusCode::kTimeout);
  EXPECT_EQ(outcome.status.rank(), 0);
  EXPECT_THAT(outcome.status.message(), testing::HasSubstr("the comparison of 'plugins'"));
}

TEST(CheckSameOnAllRanks, ALateRankComparesWithWhatWasSaid) {
  launch::LaunchOutcome outcome =
      RunThreads({.world_size = 2}, [](base::RankContext& context) -> Status {
        ENGINE_RETURN_IF_ERROR(CheckSameOnAllRanks(context, "plugins", "tcp 1.0", 10000));
        if (context.info.rank == 0)
          return CheckSameOnAllRanks(context, "lines", "a 1\nb 2\nc 3\n", 0);
        context.info.incarnation = 1;  // as if another had been here before
        EXPECT_TRUE(CheckSameOnAllRanks(context, "plugins", "tcp 1.0", 10000).ok());
        const Status other = CheckSameOnAllRanks(context, "plugins", "tcp 2.0", 10000);
        EXPECT_EQ(other.code(), StatusCode::kConfig);
        EXPECT_EQ(other.rank(), 1);
        const Status lines = CheckSameOnAllRanks(context, "lines", "a 1\nb 3\nc 4\n", 10000);
        EXPECT_THAT(lines.message(), testing::HasSubstr("rank 1 has 'b 3' and rank 0 has 'b 2';"));
        EXPECT_STREQ(other.message(),
                     "rank 1: another configuration than rank 0 (plugins): rank 1 has 'tcp 2.0' "
                     "and rank 0 has 'tcp 1.0'; start all of them with the same");
        return {};
      });
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
}

TEST(CheckSameOnAllRanks, AServerIsNamed) {
  launch::LaunchOutcome outcome =
      RunThreads({.servers = 2}, [](base::RankContext& context) -> Status {
        if (context.info.is_server == 0) return CheckSameOnAllRanks(context, "plugins", "a", 0);
        return CheckSameOnAllRanks(context, "plugins", context.info.rank == 1 ? "b" : "a", 10000);
      });
  EXPECT_EQ(outcome.status.rank(), ServerId(1));
  EXPECT_EQ(outcome.exit_code, 78);
  EXPECT_THAT(outcome.status.message(), testing::HasSubstr("server 1: another configuration"));
}

}  // namespace
}  // namespace engine::train
