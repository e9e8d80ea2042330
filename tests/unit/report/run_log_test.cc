#include "tools/report/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tools/report/run_page.h"

namespace engine::report {
namespace {

using ::testing::Pair;

std::string Step(int step, double loss) {
  return R"({"event":"step","step":)" + std::to_string(step) + R"(,"loss":)" +
         std::to_string(loss) +
         R"(,"learning_rate":0.01,"samples":8,"seconds":0.5,"communication_seconds":0.1})"
         "\n";
}

class RunLogTest : public ::testing::Test {
 protected:
  Result<RunLog> Read(const std::string& text) {
    std::ofstream(path_) << text;
    return ReadRunLog(path_);
  }

  test::TempFolder folder_;
  const std::string path_ = (folder_.path() / "run.jsonl").native();
};

TEST_F(RunLogTest, HasASeriesForEachNumber) {
  const RunLog log = ValueOf(Read(Step(1, 2.5) +
                                  R"({"event":"metric","rank":0,"name":"norm","value":3})"
                                  "\n" +
                                  Step(2, 2) +
                                  R"({"event":"evaluation","step":2,"loss":2.25})"
                                  "\n" +
                                  R"({"event":"checkpoint","step":2,"path":"a.safetensors"})"
                                  "\n"));
  EXPECT_EQ(log.steps, 2);
  EXPECT_THAT(log.of_steps.at("loss"), ElementsAre(Pair(1, 2.5), Pair(2, 2)));
  EXPECT_THAT(log.of_steps.at("samples_per_second"), ElementsAre(Pair(1, 16), Pair(2, 16)));
  EXPECT_THAT(log.of_steps.at("exposed"), ElementsAre(Pair(1, 20), Pair(2, 20)));
  EXPECT_THAT(log.of_evaluations.at("loss"), ElementsAre(Pair(2, 2.25)));
  EXPECT_THAT(log.of_plugins.at("norm"), ElementsAre(Pair(1, 3)));
  EXPECT_THAT(log.checkpoints, ElementsAre(Pair(2, "a.safetensors")));
}

TEST_F(RunLogTest, StepsThatAResumedRunRepeatedCountOnce) {
  const RunLog log =
      ValueOf(Read(Step(1, 3) + Step(2, 2) + Step(3, 1) + Step(2, 2.5) + Step(3, 1.5)));
  EXPECT_EQ(log.resumed, 1);
  EXPECT_THAT(log.of_steps.at("loss"), ElementsAre(Pair(1, 3), Pair(2, 2.5), Pair(3, 1.5)));
}

TEST_F(RunLogTest, ALineThatWasCutOffAtTheEndIsLeftOut) {
  const std::string second = Step(2, 2);
  RunLog log = ValueOf(Read(Step(1, 3) + second.substr(0, 20)));
  EXPECT_EQ(log.steps, 1);
  std::ofstream(path_, std::ios::app) << second.substr(20) << Step(3, 1);
  EXPECT_THAT(ReadOn(path_, &log), IsOk());
  EXPECT_THAT(log.of_steps.at("loss"), ElementsAre(Pair(1, 3), Pair(2, 2), Pair(3, 1)));
}

TEST_F(RunLogTest, WhatIsNoLogOfARunIsRefused) {
  EXPECT_THAT(Read(Step(1, 3) + "{}\n" + Step(2, 3)),
              FailsWith(StatusCode::kBadData, HasSubstr("run.jsonl, line 2: no metric of a run")));
  EXPECT_THAT(Read("a,b\n"), FailsWith(StatusCode::kBadData, HasSubstr("line 1")));
  EXPECT_THAT(Read(""), FailsWith(StatusCode::kBadData, HasSubstr("has no steps")));
  EXPECT_THAT(ReadRunLog(path_ + ".not"),
              FailsWith(StatusCode::kMissingInput, HasSubstr("output.metrics")));
}

TEST_F(RunLogTest, ThePageShowsWhatIsThere) {
  const RunLog log =
      ValueOf(Read(Step(1, 3) + Step(2, std::numeric_limits<float>::max()) + Step(3, 2) +
                   R"({"event":"evaluation","step":3,"loss":2.125,"accuracy":null})"
                   "\n"));
  const std::string page = ValueOf(RunPage(log, "a<b", ""));
  EXPECT_THAT(page, HasSubstr("<h1>engine report: a&lt;b</h1>"));
  EXPECT_THAT(page, HasSubstr("<tr><th>best held-out loss</th><td>2.125 (step 3)</td></tr>"));
  EXPECT_THAT(page, HasSubstr("aria-label=\"Loss over step\""));
  EXPECT_THAT(page, Not(HasSubstr("Accuracy")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST_F(RunLogTest, ThePageHasTheMistakesOfAnEvaluation) {
  const RunLog log = ValueOf(Read(Step(1, 3)));
  const std::string page =
      ValueOf(RunPage(log, "run",
                      R"({"loss":1,"classes":[{"name":"cat","recall":0.75},{"name":"dog"}],)"
                      R"("confusion":[[3,1],[2,5]]})"));
  EXPECT_THAT(page, HasSubstr("<td>cat</td><td>0</td><td>0</td><td>0</td><td>0.75</td>"));
  EXPECT_THAT(page, HasSubstr("<td>2</td><td>dog</td><td>cat</td></tr>\n"
                              "<tr><td>1</td><td>cat</td><td>dog</td>"));
  for (const char* other : {"{}", "loss", R"({"loss":1,"classes":[1],"confusion":1})"}) {
    EXPECT_THAT(RunPage(log, "run", other),
                FailsWith(StatusCode::kBadData, HasSubstr("the evaluation is")));
  }
}

}  // namespace
}  // namespace engine::report
