#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/report/train_report.h"
#include "tests/support/matchers.h"
#include "tests/unit/bench/sample_result.h"

namespace engine::bench {
namespace {

TrainResult Concluded(TrainResult result) {
  Conclude(&result);
  return result;
}

TrainResult Refused() {
  TrainResult result = SampleResult(8);
  result.runs[1].losses[2] = 9;
  Conclude(&result);
  return result;
}

TEST(Conclude, SaysWhichIsFaster) {
  EXPECT_THAT(Concluded(SampleResult(8)).sentence, StartsWith("B is 1.25x faster than A"));
  EXPECT_THAT(Concluded(SampleResult(12.5)).sentence, StartsWith("B is 1.25x slower than A"));
  EXPECT_THAT(Concluded(SampleResult(10)).sentence, StartsWith("not separable"));
}

TrainResult ToALoss(const std::vector<std::optional<double>>& seconds) {
  TrainResult result = SampleResult(8);
  result.request.target_loss = 1.6;
  for (size_t i = 0; i < result.runs.size(); ++i) {
    result.runs[i].target_seconds = seconds[i];
    result.runs[i].losses[0] += static_cast<double>(i);
  }
  return Concluded(result);
}

TEST(Conclude, ComparesTheTimeToALoss) {
  const TrainResult result = ToALoss({6, 3, 3, 6, 6, 3, 3, 6});
  EXPECT_THAT(result.sentence,
              AllOf(StartsWith("B is 2.00x faster than A"), EndsWith(", to a loss of 1.6")));
  EXPECT_THAT(TrainText(result), HasSubstr("seconds to a loss of 1.6, B               3.00 (95 % "
                                           "interval 3.00 to 3.00), after 5 steps (median)"));
  const auto json = nlohmann::json::parse(TrainJson(result));
  EXPECT_NEAR(json["target_seconds"]["A"]["mean"].get<double>(), 6, 1e-6);
  EXPECT_EQ(json["runs"][1]["target_seconds"], 3);
}

TEST(Conclude, ATargetThatARunMissesIsNoConclusion) {
  const TrainResult result = ToALoss({6, 3, {}, 6, 6, 3, 3, 6});
  EXPECT_THAT(result.sentence,
              HasSubstr("in 4 steps A reached a loss of 1.6 in 4 of 4 runs and B in 3"));
  EXPECT_TRUE(nlohmann::json::parse(TrainJson(result))["ratio"].is_null());
  EXPECT_THAT(TrainHtml(result), HasSubstr(">no conclusion<"));
}

TEST(Conclude, AControlPassesOrFails) {
  TrainResult even = SampleResult(10), uneven = SampleResult(8);
  even.request.same = uneven.request.same = true;
  EXPECT_THAT(Concluded(even).sentence, StartsWith("control passed"));
  EXPECT_THAT(Concluded(uneven).sentence,
              AllOf(StartsWith("control failed"), HasSubstr("1.25x faster")));
}

TEST(Conclude, KnowsTheBoundsOfALink) {
  TrainResult result = SampleResult(8, /*with_null=*/true);
  result.link = LinkConditions{"1gbit", 1e9, "cubic"};
  Conclude(&result);
  const Conditions& conditions = result.conditions;
  EXPECT_NEAR(*conditions.compute_seconds, 6e-3, 1e-5);
  // Of two ranks each sends 2 (n-1)/n = 1 times 1 MB.
  EXPECT_NEAR(*conditions.communication_seconds, 8e-3, 1e-9);
  EXPECT_NEAR(*conditions.ratio, 8.0 / 6, 0.01);
  EXPECT_NEAR(*conditions.no_overlap, 14e-3, 1e-5);
  EXPECT_NEAR(*conditions.backward_overlap, 10e-3, 1e-5);
  EXPECT_NEAR(*conditions.full_overlap, 8e-3, 1e-5);
  EXPECT_THAT(TrainText(result),
              AllOf(HasSubstr("schedule efficiency of A                  80.0 %"),
                    HasSubstr("exposed communication of A                4.00")));
}

TEST(Conclude, SaysNothingOfWhatItDoesNotKnow) {
  const TrainResult result = Concluded(SampleResult(8));
  EXPECT_FALSE(result.conditions.compute_seconds);
  EXPECT_THAT(TrainText(result), Not(HasSubstr("efficiency")));
}

TEST(TrainText, EndsInTheConclusionAndFitsATerminal) {
  const TrainResult result = Concluded(SampleResult(8));
  const std::string text = TrainText(result);
  EXPECT_THAT(text, EndsWith("\n" + result.sentence + "\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto columns = std::count_if(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // starts a character
    });
    EXPECT_LE(columns, 100) << line;
  }
}

TEST(TrainCsv, HasALineForEachMeasuredStep) {
  const std::string csv = TrainCsv(Concluded(SampleResult(8)));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 8 * 4);
  EXPECT_THAT(csv, StartsWith("run,side,block,step,seconds,loss\n1,A,1,2,0.009990000,2.25\n"));
  EXPECT_THAT(csv, HasSubstr("\n2,B,1,2,0.007992000,2.25\n"));
}

TEST(TrainJson, HoldsEverything) {
  const TrainResult result = Concluded(SampleResult(8, true));
  const auto json = nlohmann::json::parse(TrainJson(result));
  EXPECT_EQ(json["conclusion"], result.sentence);
  EXPECT_EQ(json["refused"], false);
  EXPECT_NEAR(json["ratio"]["b_over_a_speed"].get<double>(), 1.25, 1e-6);
  EXPECT_EQ(json["ratio"]["b_is"], "faster");
  EXPECT_EQ(json["ratio"]["by_pair"].size(), 4u);
  EXPECT_EQ(json["runs"].size(), 10u);
  EXPECT_EQ(json["runs"][1]["side"], "B");
  EXPECT_EQ(json["runs"][1]["step_seconds"].size(), 4u);
  EXPECT_EQ(json["runs"][1]["losses"].size(), 5u);
  EXPECT_EQ(json["machine"]["command"], "engine bench train '<x>'");
  EXPECT_EQ(json["request"]["b"]["plugins"][1], "priority_sched");
  EXPECT_NEAR(json["step_seconds"]["null"]["median"].get<double>(), 6e-3, 1e-5);
}

TEST(TrainJson, OfARefusalHoldsNoRatio) {
  const auto json = nlohmann::json::parse(TrainJson(Refused()));
  EXPECT_EQ(json["refused"], true);
  EXPECT_TRUE(json["ratio"].is_null());
  EXPECT_EQ(json["loss_difference"]["step"], 3);
  EXPECT_THAT(json["conclusion"].get<std::string>(),
              AllOf(StartsWith("no conclusion"), HasSubstr("step 3")));
  EXPECT_EQ(json["loss_difference"]["other_run"], 2);
}

TEST(TrainHtml, AsksForNothing) {
  const std::string html = TrainHtml(Concluded(SampleResult(8, true)));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  for (const char* word :
       {"<script", "<link", "<img", "src=", "href=", "url(", "@import", "http:", "https:"}) {
    EXPECT_THAT(html, Not(HasSubstr(word)));
  }
}

TEST(TrainHtml, EscapesWhatItShows) {
  const std::string html = TrainHtml(Concluded(SampleResult(8)));
  EXPECT_THAT(html, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;.pbtxt"));
  EXPECT_THAT(html, HasSubstr("engine bench train '&lt;x&gt;'"));
  EXPECT_THAT(html, Not(HasSubstr("a <b>")));
}

TEST(TrainHtml, OfARefusalNamesNoWinner) {
  const std::string html = TrainHtml(Refused());
  EXPECT_THAT(html, HasSubstr(">no conclusion<"));
  EXPECT_THAT(html, HasSubstr("differs from step 3"));
  EXPECT_THAT(html, Not(HasSubstr("faster than")));
}

}  // namespace
}  // namespace engine::bench
