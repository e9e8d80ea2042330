#include "app/run/best.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/expect_status.h"

namespace engine::run {
namespace {

using ::testing::HasSubstr;

class Nobody final : public RunObserver {
 public:
  Status OnStep(const train::StepReport&) override { return {}; }
  Status OnEvaluation(const train::EvaluationReport&) override { return {}; }
  Status OnCheckpoint(int64_t, const std::string&) override { return {}; }
  Status OnText(const std::string&, const std::string&) override { return {}; }
};

// Evaluations after steps 10, 20, ...: "k" where one is kept, "e" where the run ends, "-" for neither.
std::string Judged(Best& best, const std::vector<double>& losses, int64_t step = 0) {
  std::string text;
  for (const double loss : losses) {
    EXPECT_THAT(
        best.OnEvaluation({.step = step += 10, .loss = loss, .metrics = {{"accuracy", -loss}}}),
        IsOk());
    const train::Judgement judgement = ValueOf(best.Judge());
    text += judgement.keep ? "k" : judgement.end ? "e" : "-";
  }
  return text;
}

TEST(Best, KeepsWhatIsBetterAndEndsWhenNothingIs) {
  Nobody nobody;
  for (const char* metric : {"loss", "accuracy"}) {
    Best best({.patience = 3, .metric = metric}, nobody);
    EXPECT_EQ(Judged(best, {3, 2, 2, 2.5, 1, 1.5, 1.25, 1.125, 0.5}), "kk--k--ek") << metric;
  }
  Best patient({}, nobody);
  EXPECT_EQ(Judged(patient, {1, 2, 3, 4, 5, 6}), "k-----") << "without patience nothing ends";
}

TEST(Best, ASmallGainIsNone) {
  Nobody nobody;
  Best best({.patience = 2, .min_delta = 0.25}, nobody);
  EXPECT_EQ(Judged(best, {3, 2.875, 2.5, 2.25, 2.125}), "k-k-k")
      << "against the best, not the last";
}

TEST(Best, WhatIsNoNumberIsNeverTheBest) {
  Nobody nobody;
  Best best({.patience = 3}, nobody);
  EXPECT_EQ(Judged(best, {NAN, 3, NAN, 2}), "-k-k");
}

TEST(Best, ARunThatGoesOnKnowsIt) {
  Nobody nobody;
  Best first({.patience = 3}, nobody), second({.patience = 3}, nobody);
  EXPECT_EQ(first.Save(), "");
  EXPECT_EQ(Judged(first, {3, 0.1, 2, 2}), "kk--");
  second.Load(first.Save());
  EXPECT_EQ(Judged(second, {0.2}, 40), "e");
  EXPECT_THAT(second.Describe(),
              HasSubstr("loss was best, 0.1, after step 20, and no better in 3"));
  second.Load("");
  EXPECT_EQ(second.Save(), "0.1 20 3");
}

TEST(Best, AFigureThatIsNotThereIsRefused) {
  Nobody nobody;
  Best best({.metric = "f1"}, nobody);
  ASSERT_THAT(best.OnEvaluation({.step = 1, .loss = 2}), IsOk());
  const auto judged = best.Judge();
  ASSERT_FALSE(judged.ok());
  EXPECT_EQ(judged.status().code(), StatusCode::kConfig);
  EXPECT_THAT(judged.status().message(), HasSubstr("no 'f1'; they give loss"));
}

}  // namespace
}  // namespace engine::run
