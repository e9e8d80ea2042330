#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/trace/made_trace.h"
#include "tools/trace/trace_format.h"

namespace engine::trace {
namespace {

using Json = nlohmann::json;

std::string TextOf(const Trace& trace) {
  std::string text;
  EXPECT_THAT(FormatTrace(trace,
                          [&](std::string_view piece) {
                            text += piece;
                            return Status();
                          }),
              IsOk());
  return text;
}

// Times of events in whole nanoseconds.
int64_t Ns(const Json& event, const char* key) {
  return std::llround(event[key].get<double>() * 1000);
}

std::map<std::pair<int, int>, std::vector<Json>> SlicesByRow(const Json& root) {
  std::map<std::pair<int, int>, std::vector<Json>> rows;
  for (const Json& event : root["traceEvents"]) {
    if (event["ph"] == "X") rows[{event["pid"], event["tid"]}].push_back(event);
  }
  return rows;
}

// On every row any two slices are disjoint, or one contains the other and stands before it.
void ExpectRowsNest(const Json& root) {
  for (const auto& [row, slices] : SlicesByRow(root)) {
    for (size_t i = 0; i < slices.size(); ++i) {
      for (size_t j = i + 1; j < slices.size(); ++j) {
        const int64_t a = Ns(slices[i], "ts"), a_end = a + Ns(slices[i], "dur");
        const int64_t b = Ns(slices[j], "ts"), b_end = b + Ns(slices[j], "dur");
        const bool disjoint = a_end <= b || b_end <= a;
        const bool contains = a <= b && b_end <= a_end;
        EXPECT_TRUE(disjoint || contains) << slices[i] << "\n" << slices[j];
      }
    }
  }
}

const Json* Slice(const Json& root, int rank, const std::string& name, uint64_t step) {
  for (const Json& event : root["traceEvents"]) {
    if (event["ph"] == "X" && event["pid"] == rank + 1 && event["name"] == name &&
        event["args"]["step"] == step) {
      return &event;
    }
  }
  return nullptr;
}

class TraceFile : public ::testing::Test {
 protected:
  Result<Trace> Read(const std::string& text) { return ReadTrace(folder_.Write("trace", text)); }

  const engine::test::TempFolder folder_;
};

TEST(FormatTrace, GivesEachRankAProcessAndEachLaneRows) {
  const Json root = Json::parse(TextOf(TwoRanks(3)));
  std::map<int, std::vector<std::string>> names;
  for (const Json& event : root["traceEvents"]) {
    if (event["name"] == "process_name" || event["name"] == "thread_name") {
      names[event["pid"]].push_back(event["args"]["name"]);
    }
  }
  // Transfer a is submitted while transfer b is under way, so there are two rows.
  for (int rank : {0, 1}) {
    EXPECT_THAT(names[rank + 1],
                ::testing::ElementsAre("rank " + std::to_string(rank), "steps", "compute", "waits",
                                       "transfers 1", "transfers 2"));
  }
}

TEST(FormatTrace, SlicesOfARowNeverOverlapInPart) {
  ExpectRowsNest(Json::parse(TextOf(TwoRanks(4))));
  constexpr unsigned kSeed = 3;
  std::mt19937 random(kSeed);
  TimelineMaker maker(0, 1, TwoLayerTasks(100));
  for (int i = 0; i < 150; ++i) {
    const auto time = [&] { return static_cast<int64_t>(random() % 3000); };
    const int64_t begin = time(), end = begin + time() / 10;
    // Ready after the begin and a first byte before it happen when clocks are read late.
    maker.Move(i % 2 == 0 ? kTransferA : kTransferB, i, time(), begin, time(), end);
    maker.Compute(kForwardA, i, begin, end).Wait(kUpdateA, i, time() / 100, begin + 31);
    maker.Step(i, begin, end).Flush(i, begin, end + 5);
  }
  ExpectRowsNest(Json::parse(TextOf({.metadata = {}, .ranks = {maker.timeline}})));
}

TEST(FormatTrace, ShowsQueueCommunicatorAndWire) {
  TimelineMaker maker(0, 2, TwoLayerTasks(4096));
  maker.Move(kTransferA, 1, 100, 130, 150, 200).Move(kTransferB, 2, 300, 310, 0, 400);
  const Json root = Json::parse(TextOf({.metadata = {}, .ranks = {maker.timeline}}));
  const auto expect = [&](const char* name, uint64_t step, int64_t begin_us, int64_t end_us) {
    const Json* slice = Slice(root, 0, name, step);
    ASSERT_NE(slice, nullptr) << name;
    EXPECT_EQ(Ns(*slice, "ts"), (begin_us - 100) * kUs) << name;  // times count from the first
    EXPECT_EQ(Ns(*slice, "dur"), (end_us - begin_us) * kUs) << name;
  };
  expect("queue: transfer a", 1, 100, 130);
  expect("transfer a", 1, 130, 200);
  expect("in communicator", 1, 130, 150);
  expect("wire", 1, 150, 200);
  expect("queue: transfer b", 2, 300, 310);
  expect("transfer b", 2, 310, 400);
  EXPECT_EQ(Slice(root, 0, "wire", 2), nullptr);  // not known
  const Json& args = (*Slice(root, 0, "transfer a", 1))["args"];
  EXPECT_EQ(args["bucket"], 1);
  EXPECT_EQ(args["bytes"], 4096);
  EXPECT_EQ(args["needed_by"], 0);
  EXPECT_EQ(args["needed_by_task"], "forward a");
  EXPECT_EQ(args["transfer"], "all-reduce");
}

TEST(FormatTrace, PutsAllRanksOnTheClockOfRankZero) {
  Trace trace = TwoRanks(2);
  trace.ranks[1].clock_offset_ns = 5001;  // its clock is behind
  const Json root = Json::parse(TextOf(trace));
  for (const char* name : {"forward b", "transfer a", "step 1"}) {
    EXPECT_EQ(Ns(*Slice(root, 1, name, 1), "ts") - Ns(*Slice(root, 0, name, 1), "ts"), 5001);
    EXPECT_EQ(Ns(*Slice(root, 1, name, 1), "dur"), Ns(*Slice(root, 0, name, 1), "dur"));
  }
  EXPECT_EQ(Ns(*Slice(root, 0, "step 1", 1), "ts"), 0);
}

TEST(FormatTrace, DrawsArrowsOnlyWhereAWaitEnded) {
  const Json root = Json::parse(TextOf(TwoRanks(2)));
  const auto rows = SlicesByRow(root);
  // The name of the smallest slice there.
  const auto at = [&](const Json& end) {
    std::string name;
    int64_t shortest = INT64_MAX;
    for (const Json& slice : rows.at({end["pid"], end["tid"]})) {
      const int64_t after = Ns(end, "ts") - Ns(slice, "ts"), length = Ns(slice, "dur");
      if (after < 0 || after >= length || length > shortest) continue;
      shortest = length;
      name = slice["name"];
    }
    return name;
  };
  std::map<uint64_t, std::vector<const Json*>> flows;
  for (const Json& event : root["traceEvents"]) {
    if (event["ph"] == "s" || event["ph"] == "f") flows[event["id"]].push_back(&event);
  }
  std::map<std::string, int> arrows;
  for (const auto& [id, ends] : flows) {
    ASSERT_EQ(ends.size(), 2u) << id;
    EXPECT_EQ((*ends[0])["ph"], "s");
    EXPECT_EQ((*ends[1])["ph"], "f");
    EXPECT_EQ((*ends[1])["bp"], "e");
    EXPECT_LE(Ns(*ends[0], "ts"), Ns(*ends[1], "ts"));
    ++arrows[at(*ends[0]) + " -> " + at(*ends[1])];
  }
  // Two steps of two ranks; forward tasks of the first step waited for nothing. Forward b follows
  // forward a, which ended last.
  EXPECT_EQ(arrows,
            (std::map<std::string, int>{
                {"wire -> update b", 4}, {"wire -> update a", 4}, {"update a -> forward a", 2}}));
}

TEST_F(TraceFile, IsReadBackWithoutLoss) {
  Trace trace = TwoRanks(5);
  trace.metadata["odd"] = "quote \" backslash \\ tab \t \xc3\xa4";
  RankTimeline& timeline = trace.ranks[1];
  timeline.clock_offset_ns = -987654321;
  timeline.clock_error_ns = 55;
  timeline.dropped = 3;
  timeline.tasks[3].transfer = TransferKind::kAllGather;
  timeline.tasks[3].bucket = UINT32_MAX;
  timeline.tasks[5].size_bytes = UINT64_MAX;
  timeline.spans[1].ready_ns = 0;
  timeline.spans[2].wire_ns = 0;
  timeline.spans.push_back({SpanKind::kFlush, kNoTask, 9, 0, -7, 0, -3});
  const Trace read = ValueOf(Read(TextOf(trace)));
  EXPECT_EQ(read.metadata, trace.metadata);
  EXPECT_TRUE(read.ranks == trace.ranks);
}

TEST_F(TraceFile, MayHaveNamesThatAreNoText) {
  Trace trace = TwoRanks(1);
  trace.ranks[0].tasks[0].name = "bad \xff\xfe";
  const Trace read = ValueOf(Read(TextOf(trace)));
  EXPECT_THAT(read.ranks[0].tasks[0].name, HasSubstr("bad "));
}

TEST(FormatTrace, HandsOnPiecesAndTheErrorOfTheSink) {
  size_t pieces = 0, largest = 0;
  ASSERT_TRUE(FormatTrace(TwoRanks(500), [&](std::string_view piece) {
                ++pieces;
                largest = std::max(largest, piece.size());
                return Status();
              }).ok());
  EXPECT_GT(pieces, 10u);
  EXPECT_LT(largest, 128u << 10);
  size_t calls = 0;
  const Status status = FormatTrace(TwoRanks(500), [&](std::string_view) {
    ++calls;
    return Status::Error(StatusCode::kStorage, "disk full");
  });
  EXPECT_EQ(status.code(), StatusCode::kStorage);
  EXPECT_EQ(calls, 1u);
}

TEST(FormatTrace, RefusesATimelineThatCannotBe) {
  Trace trace = TwoRanks(1);
  trace.ranks[1].spans[0].task = 99;
  const Status status = FormatTrace(trace, [](std::string_view) { return Status(); });
  EXPECT_EQ(status.code(), StatusCode::kBadData);
}

TEST_F(TraceFile, OfAnotherKindIsRefusedWithASentence) {
  const std::string whole = TextOf(TwoRanks(1));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "it is empty"},
      {"step,loss\n1,2\n", "not valid JSON"},
      {"{\"traceEvents\":[]}", "'engine' is missing"},
      {"[1,2]", "'engine' is missing"},
      {"3", "'engine' is missing"},
      {"{\"engine\":{}}", "'format' is missing"},
      {"{\"engine\":{\"format\":2}}", "it has format 2, and this engine reads 1"},
      {"{\"engine\":{\"format\":1,\"metadata\":{},\"ranks\":[]}}", "it has no ranks"},
      {"{\"engine\":{\"format\":1,\"metadata\":{},\"ranks\":[7]}}", "'rank' is missing"},
      {whole.substr(0, whole.size() - 3), "not valid JSON"},
      {std::regex_replace(whole, std::regex("\"world_size\":2"), "\"world_size\":0"),
       "no rank 0 in a run of 0 ranks"},
  };
  for (const auto& [text, why] : cases) {
    EXPECT_THAT(Read(text),
                FailsWith(StatusCode::kBadData,
                          AllOf(HasSubstr((folder_ / "trace") + " is no trace of the engine"),
                                HasSubstr(why))))
        << text;
  }
}

TEST_F(TraceFile, ThatIsNotThereIsMissingInput) {
  EXPECT_THAT(ReadTrace(folder_ / "none"), FailsWith(StatusCode::kMissingInput));
  EXPECT_THAT(ReadTrace(folder_.path()), FailsWith(StatusCode::kMissingInput));
}

// What a file holds is the same text.
TEST(SerializeTimeline, IsReadBackWholeOrNotAtAll) {
  const RankTimeline timeline = TwoLayerRun(1, 2);
  const std::string text = SerializeTimeline(timeline);
  const auto parsed = ValueOf(ParseTimeline(text));
  EXPECT_TRUE(parsed == timeline);
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
