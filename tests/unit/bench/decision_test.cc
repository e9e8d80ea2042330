#include "bench/cluster/decision.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/matchers.h"

namespace engine::bench {
namespace {

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

std::vector<ClusterSweep> Sweeps() {
  std::vector<ClusterSweep> sweeps(1);
  sweeps[0].request.contenders = {{"tcp", {}}, {"shm", {}}};
  sweeps[0].result.rows = {Row(4, Steady(10), Steady(20)), Row(64, Steady(12), Wild(11)),
                           Row(1024, Steady(30), Steady(20)), Row(4096, Steady(90), {})};
  return sweeps;
}

TEST(BySizeOptions, FollowSureDifferencesAlone) {
  EXPECT_THAT(
      BySizeOptions(Sweeps(), kNames),  // the last size has but one contender
      ElementsAre("by_size.table=all_reduce 64 tcp; all_reduce 1024 shm; all_reduce any tcp",
                  "by_size.default=tcp", "by_size.second=shm"));
}

TEST(BySizeOptions, NameNobodyWhoBrokeOrWasWrongElsewhere) {
  EXPECT_THAT(BySizeOptions(Sweeps(), {"tcp"}), IsEmpty()) << "one for all needs no table";
}

TEST(OverSizes, IsTheGeometricMeanOfEachRound) {
  SweepResult result;
  result.rows = {Row(4, {{1}, {2}}, {{1}}), Row(8, {{4}, {8}}, {})};
  EXPECT_THAT(OverSizes(result), ElementsAre(Turns{{2}, {4}}, Turns{}));
}

}  // namespace
}  // namespace engine::bench
