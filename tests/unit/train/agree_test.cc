#include "core/train/agree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(CheckSameOnAllRanks, NamesTheOddRanksOnAllRanks) {
  std::vector<std::string> said(4);
  launch::LaunchOutcome outcome = RunThreads({.world_size = 4}, [&](base::RankContext& context) {
    int rank = context.info.rank;
    const char* value = rank == 1 || rank == 3 ? "tcp 2.0" : "tcp 1.0";
    Status status = CheckSameOnAllRanks(context, "plugins", value, 10000);
    said[rank] = status.message();
    EXPECT_EQ(status.code(), StatusCode::kConfig);
    EXPECT_EQ(status.rank(), 1);
    // Returned only when all have compared, so that no rank is aborted before it has heard.
    (void)context.store.Set("heard/" + std::to_string(rank), "");
    for (int other = 0; other < 4; ++other) {
      (void)context.store.Get("heard/" + std::to_string(other), 10000);
    }
    return status;
  });
  for (const std::string& sentence : said) {
    EXPECT_EQ(sentence,
              "rank 1, rank 3: another configuration than rank 0 (plugins): rank 1 has 'tcp "
              "2.0' and rank 0 has 'tcp 1.0'; start all of them with the same");
  }
  EXPECT_EQ(outcome.exit_code, 78);
  EXPECT_EQ(outcome.status.rank(), 1);
}

TEST(CheckSameOnAllRanks, ARankThatDoesNotComeIsATimeout) {
  launch::LaunchOutcome outcome =
      RunThreads({.world_size = 2}, [](base::RankContext& context) -> Status {
        if (context.info.rank == 1) return {};
        return CheckSameOnAllRanks(context, "plugins", "x", 20);
      });
  EXPECT_EQ(outcome.status.code(), StatusCode::kTimeout);
  EXPECT_THAT(outcome.status.message(), testing::HasSubstr("agree/plugins/1"));
}

TEST(CheckSameAsRankZero, ALateRankComparesWithWhatWasSaid) {
  launch::LaunchOutcome outcome =
      RunThreads({.world_size = 2}, [](base::RankContext& context) -> Status {
        ENGINE_RETURN_IF_ERROR(CheckSameOnAllRanks(context, "plugins", "tcp 1.0", 10000));
        if (context.info.rank == 0) return PublishAsRankZero(context, "lines", "a 1\nb 2\nc 3\n");
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

TEST(CheckSameAsRankZero, AServerIsNamed) {
  launch::LaunchOutcome outcome =
      RunThreads({.servers = 2}, [](base::RankContext& context) -> Status {
        if (context.info.is_server == 0) return PublishAsRankZero(context, "plugins", "a");
        return CheckSameAsRankZero(context, "plugins", context.info.rank == 1 ? "b" : "a", 10000);
      });
  EXPECT_EQ(outcome.status.rank(), ServerId(1));
  EXPECT_EQ(outcome.exit_code, 78);
  EXPECT_THAT(outcome.status.message(), testing::HasSubstr("server 1: another configuration"));
}

}  // namespace
}  // namespace engine::train
