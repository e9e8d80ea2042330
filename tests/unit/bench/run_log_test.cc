#include "bench/report/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"

namespace engine::bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

std::string Step(int step, double loss) {
  return R"({"event":"step","step":)" + std::to_string(step) + R"(,"loss":)" +
         std::to_string(loss) +
         R"(,"learning_rate":0.0002,"samples":32,"seconds":0.5,"communication_seconds":null})"
         "\n";
}

constexpr char kEvaluation[] = R"({"event":"evaluation","step":2,"loss":1.25,"accuracy":0.5})"
                               "\n";
constexpr char kMetric[] = R"({"event":"metric","step":2,"rank":0,"name":"<norm>","value":3})"
                           "\n";

class RunLogTest : public ::testing::Test {
 protected:
  Result<RunLog> Read(const std::string& text) const {
    return ReadRunLog(folder_.Write("run.jsonl", text));
  }
  const testing::TempFolder folder_;
};

TEST_F(RunLogTest, OfStepsThatCameTwiceTheLaterCounts) {
  const RunLog log = ValueOf(
      Read(Step(1, 4) + Step(2, 3) + kEvaluation + kMetric + Step(2, 2) + R"({"event":"st)"));
  EXPECT_THAT(log.steps.at("loss"), ElementsAre(Pair(1, 4), Pair(2, 2)));
  EXPECT_EQ(log.steps.count("communication_seconds"), 0u);
  EXPECT_THAT(log.evaluations.at("accuracy"), ElementsAre(Pair(2, 0.5)));
  EXPECT_THAT(log.metrics.at("<norm>"), ElementsAre(Pair(2, 3)));
}

TEST_F(RunLogTest, WhatIsNoLogIsNamedWithItsLine) {
  for (const std::string bad : {"seed: 1\n", "[]\n", "{\"event\":3}\n", "{\"event\":\"else\"}\n"}) {
    const auto log = Read(Step(1, 4) + bad + Step(2, 3));
    ASSERT_FALSE(log.ok()) << bad;
    EXPECT_EQ(log.status().code(), StatusCode::kBadData);
    EXPECT_THAT(log.status().message(), HasSubstr("run.jsonl:2: no event"));
  }
  EXPECT_EQ(Read("").status().code(), StatusCode::kBadData);
  EXPECT_EQ(ReadRunLog("/nowhere").status().code(), StatusCode::kMissingInput);
}

TEST_F(RunLogTest, ThePageHasAFigureForWhatThereIs) {
  std::string text = kEvaluation;
  for (int step = 1; step <= 2000; ++step) text += Step(step, 1.0 / step);
  const RunLog log = ValueOf(Read(text + kMetric));
  const std::string html =
      ValueOf(RunHtml(log, "<run>",
                      R"({"loss":1,"classes":[{"class":0,"name":"cat","targets":5},{"class":1}],)"
                      R"("confusion":[[3,2],[0,4]]})"));
  EXPECT_THAT(html, AllOf(HasSubstr("<figcaption>Loss"), HasSubstr("Learning rate, in 1e-3"),
                          HasSubstr("Samples per second"), HasSubstr("<figcaption>&lt;norm&gt;"),
                          HasSubstr("engine report: &lt;run&gt;"),
                          HasSubstr("<td>2</td><td>cat</td><td>1</td>")));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("Exposed")), Not(HasSubstr("<script")),
                          Not(HasSubstr("http://")), Not(HasSubstr("nan"))));
  EXPECT_LT(html.size(), 600000u) << "thinned out";
  EXPECT_EQ(RunHtml(log, "x", "no JSON").status().code(), StatusCode::kBadData);
  EXPECT_EQ(RunHtml(log, "x", R"({"loss":1,"confusion":[["a","b"]]})").status().code(),
            StatusCode::kBadData);
  EXPECT_EQ(RunHtml(log, "x", "{}").status().code(), StatusCode::kBadData);
}

}  // namespace
}  // namespace engine::bench
