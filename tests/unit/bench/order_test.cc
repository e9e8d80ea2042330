#include "bench/training/order.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace engine::bench {
namespace {

std::string Letters(const std::vector<Turn>& order) {
  std::string letters;
  for (const Turn& turn : order) letters += Name(turn.side)[0];
  return letters;
}

TEST(Order, AlternatesInBlocks) {
  EXPECT_EQ(Letters(MakeOrder(3, false)), "ABBAABBAABBA");
  EXPECT_EQ(Letters(MakeOrder(2, true)), "ABBAnABBAn");
  EXPECT_EQ(MakeOrder(2, true).back().block, 1);
  std::vector<int> pairs;
  for (const Turn& turn : MakeOrder(2, false)) pairs.push_back(turn.pair);
  EXPECT_THAT(pairs, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
}

TEST(Order, NeighboursArePairs) {
  std::vector<RunResult> runs;
  for (const Turn& turn : MakeOrder(2, true)) {
    runs.push_back({.side = turn.side, .step_seconds = {static_cast<double>(runs.size())}});
  }
  const std::vector<Pair> pairs = MakePairs(runs);
  ASSERT_EQ(pairs.size(), 4u);
  EXPECT_THAT(pairs[0].a, ElementsAre(0));
  EXPECT_THAT(pairs[0].b, ElementsAre(1));
  EXPECT_THAT(pairs[1].a, ElementsAre(3));
  EXPECT_THAT(pairs[1].b, ElementsAre(2));
  EXPECT_THAT(pairs[2].a, ElementsAre(5));  // 4 ran without communication
  EXPECT_THAT(pairs[3].b, ElementsAre(7));
}

}  // namespace
}  // namespace engine::bench
