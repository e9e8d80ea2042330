#include "bench/cluster/decision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace engine::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kNames = {"tcp", "shm"};

// Rounds of iterations that all take about as long.
Turns Steady(double us, int rounds = 6) {
  Turns turns;
  for (int i = 0; i < rounds; ++i) turns.push_back({us, us * 1.01, us * (1 + 0.002 * i)});
  return turns;
}

// Now twice as fast, now half as fast as Steady(us).
Turns Wild(double us) {
  Turns turns;
  for (int i = 0; i < 6; ++i) turns.push_back(std::vector<double>(3, i % 2 == 0 ? us * 2 : us / 2));
  return turns;
}

SweepRow Row(int64_t bytes, const Turns& a, const Turns& b) {
  SweepRow row{.bytes = bytes, .count = bytes / 4, .timings = {}, .ratio = {}};
  row.timings[kInPlace].resize(2);
  row.timings[kInPlace][0].turns_us = a;
  row.timings[kInPlace][1].turns_us = b;
  return row;
}

std::string WinnerOfBoth(const Turns& a, const Turns& b) {
  return WinnerText(WinnerOf({a, b}, 1), kNames);
}

TEST(Winner, IsSureOnlyBeyondTheNoise) {
  EXPECT_EQ(WinnerOfBoth(Steady(20), Steady(10)), "shm 2.00x");
  EXPECT_EQ(WinnerOfBoth(Steady(10), Wild(12)).front(), '~');
  EXPECT_EQ(WinnerOfBoth(Steady(10), Steady(10)), "~ tcp, shm");
}

TEST(Winner, OfTooFewRoundsIsNotSure) {
  EXPECT_EQ(WinnerOfBoth(Steady(20, 2), Steady(10, 2)), "~ shm, tcp");
}

TEST(Winner, NeedsTimes) {
  EXPECT_EQ(WinnerOfBoth({}, {}), "-");
  EXPECT_EQ(WinnerOfBoth({}, Steady(10)), "shm");
}

TEST(Entries, FollowSureDifferencesAlone) {
  const SweepRequest request;
  SweepResult result;
  result.rows = {Row(4, Steady(10), Steady(20)), Row(64, Steady(12), Wild(11)),
                 Row(1024, Steady(30), Steady(20)), Row(4096, Steady(90), {})};
  const std::vector<Entry> entries = EntriesOf(request, result);
  ASSERT_EQ(entries.size(), 3u);  // the last size has but one contender
  EXPECT_EQ(entries[0].contender, 0u);
  EXPECT_EQ(entries[0].up_to_bytes, 64);
  EXPECT_EQ(entries[1].contender, 1u);
  EXPECT_EQ(entries[1].up_to_bytes, 1024);
  EXPECT_THAT(
      BySizeOptions(entries, kNames),
      ElementsAre("by_size.table=all_reduce 64 tcp; all_reduce 1024 shm; all_reduce any tcp",
                  "by_size.default=tcp", "by_size.second=shm"));
  EXPECT_THAT(BySizeOptions({entries[2]}, kNames), IsEmpty()) << "one for all needs no table";
}

TEST(OverSizes, IsTheGeometricMeanOfEachRound) {
  SweepResult result;
  result.rows = {Row(4, {{1}, {2}}, {{1}}), Row(8, {{4}, {8}}, {})};
  EXPECT_THAT(OverSizes(result), ElementsAre(Turns{{2}, {4}}, Turns{}));
}

TEST(Fragment, QuotesWords) {
  EXPECT_EQ(Fragment({"by_size", "fifo_sched"}, {"by_size.table=any any tcp", "by_size.default=tcp",
                                                 "fifo_sched.slice_bytes=-1"}),
            "plugins: [\"by_size\", \"fifo_sched\"]\n"
            "by_size {\n  table: \"any any tcp\"\n  default: \"tcp\"\n}\n"
            "fifo_sched {\n  slice_bytes: -1\n}\n");
}

}  // namespace
}  // namespace engine::bench
