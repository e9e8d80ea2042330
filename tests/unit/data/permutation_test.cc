#include "app/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace engine {
namespace {

std::vector<int64_t> OrderOf(int64_t size, uint64_t seed, uint64_t epoch) {
  const data::Permutation permutation(size, seed, epoch);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < size; ++i) order.push_back(permutation(i));
  return order;
}

bool IsBijection(std::vector<int64_t> order) {
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

TEST(Permutation, IsABijectionForEverySizeUpTo300AndAroundPowers) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (int64_t power = 512; power <= 8192; power *= 2) {
    sizes.insert(sizes.end(), {power - 1, power, power + 1});
  }
  sizes.insert(sizes.end(), {9973});
  for (const int64_t size : sizes) {
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      ASSERT_TRUE(IsBijection(OrderOf(size, 7, epoch))) << "size " << size << " epoch " << epoch;
    }
  }
}

TEST(Permutation, DependsOnSeedAndEpochOnly) {
  EXPECT_EQ(OrderOf(1000, 1, 2), OrderOf(1000, 1, 2));
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t epoch = 0; epoch < 10; ++epoch) orders.insert(OrderOf(1000, seed, epoch));
  }
  EXPECT_EQ(orders.size(), 100u);
}

// Each of n things should stand at each of n positions in one of n epochs: the statistic below has
// a chi-square distribution with (n - 1)^2 degrees of freedom; the bound is at six standard
// deviations.
TEST(Permutation, EveryThingComesToEveryPosition) {
  constexpr int64_t kEpochs = 6000;
  for (const int64_t size : {2, 3, 5, 10, 16}) {
    std::vector<int64_t> counts(static_cast<size_t>(size * size));
    for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const data::Permutation permutation(size, 3, epoch);
      for (int64_t i = 0; i < size; ++i) ++counts[static_cast<size_t>(i * size + permutation(i))];
    }
    const double expected = static_cast<double>(kEpochs) / static_cast<double>(size);
    double chi_square = 0;
    for (const int64_t count : counts) {
      chi_square += std::pow(static_cast<double>(count) - expected, 2) / expected;
    }
    const double freedom = static_cast<double>((size - 1) * (size - 1));
    chi_square *= static_cast<double>(size - 1) / static_cast<double>(size);
    EXPECT_LT(chi_square, freedom + 6 * std::sqrt(2 * freedom)) << "size " << size;
  }
}

TEST(Permutation, VeryLargeSizesStayInside) {
  for (const int64_t size : {(int64_t{1} << 40) + 1, int64_t{1} << 62}) {
    const data::Permutation permutation(size, 1, 0);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 1000; ++i) {
      const int64_t value = permutation(i * (size / 1000));
      ASSERT_GE(value, 0);
      ASSERT_LT(value, size);
      seen.insert(value);
    }
    EXPECT_EQ(seen.size(), 1000u);
  }
}

}  // namespace
}  // namespace engine
