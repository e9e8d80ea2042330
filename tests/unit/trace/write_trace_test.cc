#include "app/run/write_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "app/launch/launch.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/trace/made_trace.h"
#include "tools/trace/trace_format.h"

namespace engine::trace {
namespace {

launch::LaunchOutcome RunThreads(int world_size,
                                 const std::function<Status(base::RankContext&)>& body) {
  return launch::Launch(
      {.mode = launch::LaunchPlan::Mode::kThreads, .info = {.world_size = world_size}}, {}, body);
}

class WriteRunTraceTest : public ::testing::Test {
 protected:
  const engine::test::TempFolder folder_;
  const std::string path_ = folder_ / "trace.json";
};

TEST_F(WriteRunTraceTest, BringsAllRanksIntoOneFile) {
  for (int world_size : {1, 3}) {
    const launch::LaunchOutcome outcome = RunThreads(world_size, [&](base::RankContext& rank) {
      // Rank and size are filled in, whatever they were.
      RankTimeline own = TwoLayerRun(7, static_cast<uint64_t>(rank.info.rank) + 2);
      return run::WriteRunTrace(path_, rank, std::move(own),
                                {{"from", "rank " + std::to_string(rank.info.rank)}}, 10000);
    });
    ASSERT_THAT(outcome.status, IsOk());
    const auto trace = ValueOf(ReadTrace(path_));
    EXPECT_THAT(trace.metadata, ::testing::ElementsAre(::testing::Pair("from", "rank 0")));
    ASSERT_EQ(trace.ranks.size(), static_cast<size_t>(world_size));
    for (int rank = 0; rank < world_size; ++rank) {
      RankTimeline expected = TwoLayerRun(rank, static_cast<uint64_t>(rank) + 2);
      expected.world_size = world_size;
      EXPECT_TRUE(trace.ranks[static_cast<size_t>(rank)] == expected) << rank;
    }
  }
}

TEST_F(WriteRunTraceTest, SendsLargeTimelinesInParts) {
  RankTimeline large = TwoLayerRun(1, 1);
  large.tasks[0].name.assign(5 << 20, 'x');  // two parts
  const launch::LaunchOutcome outcome = RunThreads(2, [&](base::RankContext& rank) {
    return run::WriteRunTrace(path_, rank, rank.info.rank == 1 ? large : RankTimeline(), {}, 20000);
  });
  ASSERT_THAT(outcome.status, IsOk());
  const auto trace = ValueOf(ReadTrace(path_));
  EXPECT_TRUE(trace.ranks.at(1) == large);
}

// Rank 1 is a host of its own, whose clock is behind by an hour.
TEST_F(WriteRunTraceTest, MeasuresTheClocksOfOtherHosts) {
  constexpr int64_t kBehindNs = 3600'000'000'000;
  const launch::LaunchOutcome outcome = RunThreads(3, [&](base::RankContext& rank) {
    run::TraceClock clock = run::MonotonicTraceClock(rank.info.rank);
    if (rank.info.rank == 1) {
      clock.host = "another";
      clock.now_ns = [now = clock.now_ns] { return now() - kBehindNs; };
    }
    return run::WriteRunTrace(path_, rank, RankTimeline(), {}, 10000, false, &clock);
  });
  ASSERT_THAT(outcome.status, IsOk());
  const auto trace = ValueOf(ReadTrace(path_));
  const RankTimeline& moved = trace.ranks.at(1);
  EXPECT_GT(moved.clock_error_ns, 0);
  EXPECT_LE(std::abs(moved.clock_offset_ns - kBehindNs), moved.clock_error_ns);
  EXPECT_EQ(trace.ranks.at(2).clock_offset_ns, 0);
  EXPECT_EQ(trace.ranks.at(2).clock_error_ns, 0);
}

TEST_F(WriteRunTraceTest, DoesNotWaitForARankThatDoesNotCome) {
  const launch::LaunchOutcome outcome = RunThreads(2, [&](base::RankContext& rank) -> Status {
    if (rank.info.rank == 1) return {};
    return run::WriteRunTrace(path_, rank, RankTimeline(), {}, 30);
  });
  EXPECT_THAT(outcome.status, FailsWith(StatusCode::kTimeout, HasSubstr("trace/1/host")));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(WriteRunTraceTest, EndsWhenARankFails) {
  const launch::LaunchOutcome outcome = RunThreads(3, [&](base::RankContext& rank) -> Status {
    if (rank.info.rank == 2) return Status::Error(StatusCode::kDevice, "rank 2 broke");
    return run::WriteRunTrace(path_, rank, RankTimeline(), {}, 600000);
  });
  EXPECT_THAT(outcome.status, FailsWith(StatusCode::kDevice, HasSubstr("rank 2 broke")));
}

TEST_F(WriteRunTraceTest, SaysWhatCannotBeWritten) {
  const launch::LaunchOutcome outcome = RunThreads(2, [&](base::RankContext& rank) {
    return run::WriteRunTrace("/proc/no/folder/trace.json", rank, RankTimeline(), {}, 10000);
  });
  EXPECT_EQ(outcome.status.code(), StatusCode::kStorage);
  EXPECT_EQ(outcome.exit_code, 203);
}

TEST_F(WriteRunTraceTest, LeavesTheOldFileWhenATimelineIsBroken) {
  const auto run = [&](bool broken) {
    return RunThreads(2, [&](base::RankContext& rank) {
      RankTimeline own = TwoLayerRun(0, 1);
      if (broken && rank.info.rank == 1) own.spans[0].task = 99;
      return run::WriteRunTrace(path_, rank, std::move(own), {}, 10000);
    });
  };
  ASSERT_TRUE(run(false).status.ok());
  const launch::LaunchOutcome outcome = run(true);
  EXPECT_THAT(outcome.status.message(), HasSubstr("the timeline of rank 1"));
  EXPECT_TRUE(ReadTrace(path_).ok());
}

}  // namespace
}  // namespace engine::trace
