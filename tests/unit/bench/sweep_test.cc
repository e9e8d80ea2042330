#include "bench/collectives/sweep.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace engine::bench {
namespace {

TEST(Sizes, RiseByTheFactorWithoutRepetition) {
  SweepRequest request{.min_bytes = 4, .max_bytes = 64};
  EXPECT_THAT(Sizes(request, 2), ElementsAre(4, 8, 16, 32, 64));
  request.kind = TransferKind::kAllGather;  // one element of each of three ranks at least
  EXPECT_THAT(Sizes(request, 3), ElementsAre(12, 24, 60));
  request.factor = 4;
  request.kind = TransferKind::kAllReduce;
  EXPECT_THAT(Sizes(request, 3), ElementsAre(4, 16, 64));
}

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(BusFactor(TransferKind::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(BusFactor(TransferKind::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(TransferKind::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(TransferKind::kBroadcast, 4), 1);
}

}  // namespace
}  // namespace engine::bench
