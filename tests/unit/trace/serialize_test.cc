#include "tools/trace/serialize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/unit/trace/made_trace.h"

namespace engine {
namespace {

using testing::HasSubstr;

RankTimeline Varied() {
  RankTimeline timeline = TwoLayerRun(1, 3);
  timeline.clock_offset_ns = -123456789012;
  timeline.clock_error_ns = 4321;
  timeline.dropped = 77;
  timeline.tasks[0].name = "with \"quotes\" and \xc3\xa4 and\n a line";
  timeline.tasks[3].transfer = TransferKind::kReduceScatter;
  timeline.tasks[3].unit = UINT32_MAX;
  timeline.tasks[5].size_bytes = UINT64_MAX;
  timeline.spans[0].ready_ns = 0;
  timeline.spans[2].begin_ns = -5;
  timeline.spans.push_back({SpanKind::kWait, kNoTask, 0, 0, 0, 0, 0});
  timeline.spans.push_back(
      {SpanKind::kFlush, kNoTask, 9, 0, int64_t{1} << 59, 1, int64_t{1} << 60});
  return timeline;
}

TEST(Serialize, BringsEverythingBack) {
  for (const RankTimeline& timeline : {Varied(), TwoLayerRun(0, 0), RankTimeline()}) {
    auto parsed = ParseTimeline(SerializeTimeline(timeline));
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_TRUE(*parsed == timeline);
  }
}

TEST(Serialize, IsCompact) {
  const RankTimeline run = TwoLayerRun(0, 1000);
  EXPECT_LT(SerializeTimeline(run).size(), run.spans.size() * 16);
}

TEST(Serialize, RefusesEveryTruncation) {
  const std::string bytes = SerializeTimeline(Varied());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto parsed = ParseTimeline(std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(parsed.ok()) << size << " of " << bytes.size() << " bytes";
    EXPECT_EQ(parsed.status().code(), StatusCode::kBadData);
  }
  EXPECT_FALSE(ParseTimeline(bytes + '\0').ok());
}

// Whatever is accepted is in range; nothing reads or allocates beyond what is there.
TEST(Serialize, SurvivesChangedBytes) {
  constexpr unsigned kSeed = 11;
  std::mt19937 random(kSeed);
  const std::string bytes = SerializeTimeline(Varied());
  int refused = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string changed = bytes;
    for (int i = 0; i < 3; ++i) changed[random() % bytes.size()] = static_cast<char>(random());
    const auto parsed = ParseTimeline(changed);
    refused += parsed.ok() ? 0 : 1;
    if (parsed.ok()) {
      EXPECT_TRUE(CheckTimeline(*parsed).ok()) << "seed " << kSeed << ", trial " << trial;
    }
  }
  EXPECT_GT(refused, 100);
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
}  // namespace engine
