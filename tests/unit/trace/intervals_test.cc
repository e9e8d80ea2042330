#include "tools/trace/intervals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace engine::trace {
namespace {

constexpr int64_t kRange = 60;

std::vector<Interval> RandomIntervals(std::mt19937& random) {
  std::vector<Interval> intervals(random() % 12);
  for (Interval& interval : intervals) {
    interval.begin = static_cast<int64_t>(random() % kRange);
    interval.end = interval.begin + static_cast<int64_t>(random() % 10);
  }
  return intervals;
}

std::vector<bool> Covered(const std::vector<Interval>& intervals) {
  std::vector<bool> covered(kRange + 10);
  for (const Interval& interval : intervals) {
    for (int64_t t = interval.begin; t < interval.end; ++t) covered[static_cast<size_t>(t)] = true;
  }
  return covered;
}

std::vector<bool> Covered(const Intervals& intervals) {
  std::vector<Interval> all;
  for (const auto& interval : intervals) all.push_back({interval.lower(), interval.upper()});
  return Covered(all);
}

// Compared with one bit per time.
TEST(Intervals, AgreeWithCountingTimes) {
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  for (int trial = 0; trial < 500; ++trial) {
    const auto a = RandomIntervals(random), b = RandomIntervals(random);
    const Intervals union_a = Union(a), union_b = Union(b);
    std::vector<bool> both = Covered(a);
    EXPECT_EQ(Covered(union_a), both) << "seed " << kSeed << ", trial " << trial;
    const std::vector<bool> in_b = Covered(b);
    for (size_t t = 0; t < both.size(); ++t) both[t] = both[t] && in_b[t];
    const Intervals shared = Intersection(union_a, union_b);
    EXPECT_EQ(Covered(shared), both) << "seed " << kSeed << ", trial " << trial;
    EXPECT_EQ(Length(shared), std::count(both.begin(), both.end(), true));
    const Interval window{5, 5 + static_cast<int64_t>(random() % 40)};
    EXPECT_EQ(LengthWithin(shared, window),
              std::count(both.begin() + window.begin, both.begin() + window.end, true));
  }
}

TEST(AssignRows, UsesAsFewRowsAsOverlapAtOnce) {
  EXPECT_THAT(AssignRows({}), testing::IsEmpty());
  EXPECT_THAT(AssignRows({{0, 10}, {2, 4}, {3, 12}, {4, 5}, {10, 11}}),
              testing::ElementsAre(0, 1, 2, 1, 0));
}

}  // namespace
}  // namespace engine::trace
