#include "app/run/best.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/matchers.h"

namespace engine::run {
namespace {

// Evaluations after steps 10, 20, ...: "k" where one is kept, "e" where the run ends, "-" for neither.
std::string Judged(Best& best, const std::vector<double>& losses, int64_t step = 0) {
  std::string text;
  for (const double loss : losses) {
    const train::Judgement judgement =
        best.Judge({.step = step += 10, .loss = loss, .metrics = {{"accuracy", -loss}}});
    text += judgement.keep ? "k" : judgement.end ? "e" : "-";
  }
  return text;
}

TEST(Best, KeepsWhatIsBetterAndEndsWhenNothingIs) {
  for (const char* metric : {"loss", "accuracy"}) {
    Best best({.patience = 3, .metric = metric});
    EXPECT_EQ(Judged(best, {3, 2, 2, 2.5, 1, 1.5, 1.25, 1.125, 0.5}), "kk--k--ek") << metric;
  }
  Best patient({});
  EXPECT_EQ(Judged(patient, {1, 2, 3, 4, 5, 6}), "k-----") << "without patience nothing ends";
}

TEST(Best, ASmallGainIsNone) {
  Best best({.patience = 2, .min_delta = 0.25});
  EXPECT_EQ(Judged(best, {3, 2.875, 2.5, 2.25, 2.125}), "k-k-k")
      << "against the best, not the last";
}

TEST(Best, WhatIsNoNumberIsNeverTheBest) {
  Best best({.patience = 3});
  EXPECT_EQ(Judged(best, {NAN, 3, NAN, 2}), "-k-k");
}

TEST(Best, ARunThatGoesOnKnowsIt) {
  Best first({.patience = 3}), second({.patience = 3});
  EXPECT_EQ(first.Save(), "");
  EXPECT_EQ(Judged(first, {3, 0.1, 2, 2}), "kk--");
  EXPECT_TRUE(second.Load(first.Save()));
  EXPECT_EQ(Judged(second, {0.2}, 40), "e");
  EXPECT_THAT(second.Describe(),
              HasSubstr("loss was best, 0.1, after step 20, and no better in 3"));
  EXPECT_EQ(second.Save(), "0.1 20 3 50 loss");
  EXPECT_TRUE(first.Load(second.Save()));
  EXPECT_EQ(Judged(first, {0.2}, 40), "e")
      << "the same evaluation once more, after the loss of a rank";
  EXPECT_EQ(first.Save(), second.Save());
  Best other({.metric = "accuracy"});
  EXPECT_FALSE(other.Load(second.Save())) << "which cannot be compared";
  EXPECT_EQ(other.Save(), "");
  EXPECT_TRUE(second.Load(""));
  EXPECT_EQ(second.Save(), "");
}

TEST(Best, AFigureThatIsNotThereIsNotBetter) {
  Best best({.patience = 2, .metric = "auc"});
  EXPECT_EQ(Judged(best, {1, 2}), "-e");
}

}  // namespace
}  // namespace engine::run
