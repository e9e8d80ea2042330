#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/unit/trace/made_trace.h"
#include "tools/trace/trace_format.h"

namespace engine::trace {
namespace {

using testing::HasSubstr;

// What a file holds is the same text: format_test.cc changes its characters and looks at all
// fields.
TEST(SerializeTimeline, IsReadBackWholeOrNotAtAll) {
  const RankTimeline timeline = TwoLayerRun(1, 2);
  const std::string text = SerializeTimeline(timeline);
  const auto parsed = ParseTimeline(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_TRUE(*parsed == timeline);
  for (size_t size = 0; size < text.size(); ++size) {
    const auto cut = ParseTimeline(std::string_view(text).substr(0, size));
    ASSERT_EQ(cut.status().code(), StatusCode::kBadData) << size << " of " << text.size();
  }
  EXPECT_FALSE(ParseTimeline(text + "x").ok());
  EXPECT_FALSE(ParseTimeline(std::string(100000, '[')).ok());
}

TEST(CheckTimeline, NamesWhatIsWrong) {
  const auto message = [](const std::function<void(RankTimeline&)>& change) {
    RankTimeline timeline = TwoLayerRun(1, 1);
    change(timeline);
    const Status status = CheckTimeline(timeline);
    EXPECT_NE(status.ok(), status.code() == StatusCode::kBadData);
    return std::string(status.message());
  };
  EXPECT_EQ(message([](RankTimeline&) {}), "");
  EXPECT_THAT(message([](auto& t) { t.rank = 2; }), HasSubstr("no rank 2 in a run of 2"));
  EXPECT_THAT(message([](auto& t) { t.clock_offset_ns = INT64_MIN; }),
              HasSubstr("clock of rank 1"));
  EXPECT_THAT(message([](auto& t) { t.tasks[2].kind = TaskKind(6); }),
              HasSubstr("task 2 of rank 1"));
  EXPECT_THAT(message([](auto& t) { t.tasks[2].depends_on = {2}; }), HasSubstr("task 2 of rank 1"));
  EXPECT_THAT(message([](auto& t) { t.tasks[2].depends_on_last = {8}; }), HasSubstr("task 2"));
  EXPECT_THAT(message([](auto& t) { t.spans[1].task = 8; }), HasSubstr("span 1 of rank 1"));
  EXPECT_THAT(message([](auto& t) { t.spans[1].task = kNoTask; }), HasSubstr("span 1 of rank 1"));
  EXPECT_THAT(message([](auto& t) { t.spans[1].end_ns = 0; }), HasSubstr("impossible times"));
  EXPECT_THAT(message([](auto& t) { t.spans[1].wire_ns = INT64_MAX; }), HasSubstr("impossible"));
}

}  // namespace
}  // namespace engine::trace
