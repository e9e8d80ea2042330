#include "bench/training/losses.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/matchers.h"

namespace engine::bench {
namespace {

RunResult RunOf(SideId side, std::vector<double> losses) {
  return {.side = side, .losses = std::move(losses)};
}

TEST(Losses, RoundingIsNoDifference) {
  EXPECT_FALSE(
      FindLossDifference({RunOf(SideId::kA, {2.0, 1.0, -1.0}),
                          RunOf(SideId::kB, {2.0001, 0.9999, -1.0}), RunOf(SideId::kA, {2, 1, -1})},
                         1e-4));
}

TEST(Losses, TheEarliestStepThatDiffersIsNamed) {
  const std::vector<RunResult> runs = {RunOf(SideId::kA, {2, 1.5, 1.2}),
                                       RunOf(SideId::kB, {2, 1.5, 1.1}),
                                       RunOf(SideId::kB, {2, 1.6, 1.2})};
  const auto difference = FindLossDifference(runs, 1e-4);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 2);
  EXPECT_EQ(difference->run, 0u);
  EXPECT_EQ(difference->other_run, 2u);
  EXPECT_THAT(DifferenceInWords(*difference, runs, 1e-4),
              AllOf(HasSubstr("no conclusion: A and B do not compute the same thing: at step 2"),
                    HasSubstr("1.5 in run 1 (A)"), HasSubstr("1.6 in run 3 (B), 6.3 % apart"),
                    HasSubstr("the last 20 losses are 1.5667 with A and 1.5667 with B"),
                    HasSubstr("--target-loss")));
}

TEST(Losses, ASideThatDiffersFromItselfIsNamed) {
  const std::vector<RunResult> runs = {RunOf(SideId::kA, {2}), RunOf(SideId::kB, {2}),
                                       RunOf(SideId::kA, {3})};
  const auto difference = FindLossDifference(runs, 1e-4);
  ASSERT_TRUE(difference);
  EXPECT_THAT(DifferenceInWords(*difference, runs, 1e-4), HasSubstr("does not reproduce itself"));
}

TEST(Losses, ARunThatIsShorterDiffers) {
  const auto difference =
      FindLossDifference({RunOf(SideId::kA, {2, 1}), RunOf(SideId::kB, {2})}, 1e-4);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 2);
}

TEST(Losses, WhatIsNotANumberAgreesWithNothing) {
  const std::vector<RunResult> runs = {RunOf(SideId::kA, {2, NAN}), RunOf(SideId::kB, {2, NAN})};
  const auto difference = FindLossDifference(runs, 1);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 2);
  EXPECT_THAT(DifferenceInWords(*difference, runs, 1), HasSubstr("nan in run 1 (A)"));
}

// One low loss is none yet.
TEST(Losses, ATargetIsReachedByTheMeanOfAWindow) {
  std::vector<double> losses(kLossWindow, 2.0);
  losses[3] = 0;
  EXPECT_EQ(StepsTo(1.9, losses), kLossWindow);
  EXPECT_EQ(StepsTo(1.8, losses), std::nullopt);
  losses.insert(losses.end(), {0, 0, 2, 0});
  EXPECT_EQ(StepsTo(1.8, losses), kLossWindow + 1);
  EXPECT_EQ(StepsTo(1.7, losses), kLossWindow + 2);
  losses.pop_back();
  EXPECT_EQ(StepsTo(1.65, losses), std::nullopt);
  losses.resize(kLossWindow - 1);
  EXPECT_EQ(StepsTo(3, losses), std::nullopt);
}

TEST(Losses, WithoutCommunicationTheyMayDiffer) {
  EXPECT_FALSE(FindLossDifference(
      {RunOf(SideId::kA, {2}), RunOf(SideId::kB, {2}), RunOf(SideId::kNull, {7})}, 1e-4));
}

}  // namespace
}  // namespace engine::bench
