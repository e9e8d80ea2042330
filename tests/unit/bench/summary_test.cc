#include "bench/statistics/summary.h"

#include <gtest/gtest.h>

namespace engine::bench {
namespace {

TEST(Summary, MediansInterpolateAndOfNothingAllIsZero) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_DOUBLE_EQ(Median({1, 2}), 1.5);
  EXPECT_EQ(Mean({}), 0);
  EXPECT_EQ(Summarize({}).max, 0);
}

TEST(Summary, HasAllFields) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const Summary summary = Summarize(values);
  EXPECT_DOUBLE_EQ(summary.median, 50);
  EXPECT_DOUBLE_EQ(summary.p10, 10);
  EXPECT_DOUBLE_EQ(summary.p90, 90);
  EXPECT_DOUBLE_EQ(summary.p99, 99);
  EXPECT_DOUBLE_EQ(summary.mean, 50);
  EXPECT_DOUBLE_EQ(summary.min, 0);
  EXPECT_DOUBLE_EQ(summary.max, 100);
}

}  // namespace
}  // namespace engine::bench
