#include "tools/simulate/quantity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_status.h"

namespace engine::simulate {
namespace {

TEST(QuantityTest, BitRates) {
  EXPECT_EQ(*ParseBitRate("--bandwidth", "375mbit"), 375e6);
  EXPECT_EQ(*ParseBitRate("--bandwidth", "2.5Gbit"), 2.5e9);
  for (const char* text :
       {"", "375", "mbit", "-1mbit", "0mbit", "1 mbit", "375mbits", "1e300gbit"}) {
    const auto rate = ParseBitRate("--bandwidth", text);
    EXPECT_THAT(rate, FailsWith(StatusCode::kInvalidArgument, HasSubstr("--bandwidth"))) << text;
    EXPECT_THAT(rate.status().message(), HasSubstr("375mbit"));
  }
}

TEST(QuantityTest, Times) {
  EXPECT_EQ(*ParseTime("--latency", "50us"), 50'000);
  EXPECT_EQ(*ParseTime("--latency", "0ns"), 0);
  EXPECT_EQ(*ParseTime("--latency", "1.5ms"), 1'500'000);
  EXPECT_FALSE(ParseTime("--latency", "50").ok());
  EXPECT_FALSE(ParseTime("--latency", "-1us").ok());
}

TEST(QuantityTest, Ranks) {
  EXPECT_THAT(*ParseRanks("--ranks", "2,3,8"), ElementsAre(2, 3, 8));
  EXPECT_THAT(*ParseRanks("--ranks", "4096"), ElementsAre(4096));
  EXPECT_THAT(*ParseRanks("--ranks", "2..24"), ElementsAre(2, 4, 8, 16, 24));
  EXPECT_THAT(*ParseRanks("--ranks", "3..3"), ElementsAre(3));
  for (const char* text : {"", "1", "2,", ",2", "4,2", "2,2", "8..2", "2..", "2..4097", "two"}) {
    EXPECT_EQ(ParseRanks("--ranks", text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace engine::simulate
