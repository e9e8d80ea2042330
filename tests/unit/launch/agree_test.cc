#include "app/launch/agree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "app/launch/launch.h"
#include "tests/support/expect_status.h"

namespace engine::launch {
namespace {

LaunchOutcome RunThreads(const RankInfo& info,
                         const std::function<Status(base::RankContext&)>& body) {
  return Launch({.mode = LaunchPlan::Mode::kThreads, .info = info}, {}, body);
}

TEST(CheckSameOnAllRanks, IsOkWhenAllAgree) {
  for (int world_size : {1, 3}) {
    const auto outcome = RunThreads({.world_size = world_size}, [](base::RankContext& context) {
      ENGINE_RETURN_IF_ERROR(CheckSameOnAllRanks(context, "plugins", "tcp 1.0"));
      return CheckSameOnAllRanks(context, "model", "");
    });
    EXPECT_THAT(outcome.status, IsOk());
  }
}

TEST(CheckSameOnAllRanks, EveryOddRankIsNamedAndNobodyWaitsForIt) {
  const auto outcome = RunThreads({.world_size = 4}, [&](base::RankContext& context) {
    const int rank = context.info.rank;
    const bool odd = rank == 1 || rank == 3;
    // The odd ones come last, one after the other.
    if (odd) (void)context.store.Get("2 is done", 10000);
    if (rank == 3) (void)context.store.Get("1 is done", 10000);
    const Status status = CheckSameOnAllRanks(context, "plugins", odd ? "tcp 2.0" : "tcp 1.0");
    EXPECT_EQ(status.ok(), !odd);
    if (odd) {
      const std::string name = "rank " + std::to_string(rank);
      EXPECT_EQ(status.message(), "another configuration than rank 0 (plugins): " + name +
                                      " has 'tcp 2.0' and rank 0 has 'tcp 1.0'; start all of them "
                                      "with the same");
      EXPECT_EQ(status.rank(), rank);
    }
    (void)context.store.Set(std::to_string(rank) + " is done", "");
    if (odd) (void)context.store.Get("3 is done", 10000);  // else the first ends the other
    return status;
  });
  EXPECT_EQ(outcome.exit_code, 78);
}

TEST(CheckSameOnAllRanks, RankZeroIsNamedWhenItDoesNotCome) {
  const auto outcome = RunThreads({.world_size = 2}, [](base::RankContext& context) {
    context.info.rendezvous_timeout_ms = 20;
    return context.info.rank == 0 ? Status() : CheckSameOnAllRanks(context, "plugins", "x");
  });
  EXPECT_THAT(outcome.status,
              FailsWith(StatusCode::kTimeout, testing::HasSubstr("the comparison of 'plugins'")));
  EXPECT_EQ(outcome.status.rank(), 0);
}

// Also one in the place of a lost rank, which hears the first line that differs.
TEST(CheckSameOnAllRanks, ALateRankComparesWithWhatWasSaid) {
  const auto outcome = RunThreads({.world_size = 2}, [](base::RankContext& context) -> Status {
    const bool first = context.info.rank == 0;
    const char* const lines = first ? "a 1\nb 2\nc 3\n" : "a 1\nb 3\nc 4\n";
    if (!first) ENGINE_RETURN_IF_ERROR(context.store.Get("agree/lines", 10000).status());
    context.info.incarnation = first ? 0 : 1;
    const Status status = CheckSameOnAllRanks(context, "lines", lines);
    if (first) return status;
    EXPECT_THAT(status, FailsWith(StatusCode::kConfig,
                                  testing::HasSubstr("rank 1 has 'b 3' and rank 0 has 'b 2';")));
    return {};
  });
  EXPECT_THAT(outcome.status, IsOk());
}

TEST(CheckSameOnAllRanks, AServerIsNamed) {
  const auto outcome = RunThreads({.servers = 2}, [](base::RankContext& context) {
    const bool odd = context.info.is_server != 0 && context.info.rank == 1;
    return CheckSameOnAllRanks(context, "plugins", odd ? "b" : "a");
  });
  EXPECT_EQ(outcome.status.rank(), ServerId(1));
  EXPECT_EQ(outcome.exit_code, 78);
  EXPECT_THAT(outcome.status.message(), testing::HasSubstr("server 1 has 'b'"));
}

}  // namespace
}  // namespace engine::launch
