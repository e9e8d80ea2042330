#include "core/trace/recorder.h"

#include <gtest/gtest.h>

namespace engine::trace {
namespace {

void Record(SpanRecorder& recorder, uint64_t from, uint64_t to) {
  for (uint64_t step = from; step <= to; ++step) recorder.Record({.step = step});
}

std::vector<uint64_t> Steps(const SpanRecorder& recorder) {
  std::vector<uint64_t> steps;
  for (const Span& span : recorder.InOrder()) steps.push_back(span.step);
  return steps;
}

TEST(SpanRecorder, KeepsTheNewestInOrder) {
  SpanRecorder recorder(4);
  EXPECT_TRUE(recorder.InOrder().empty());
  Record(recorder, 1, 3);
  EXPECT_EQ(Steps(recorder), (std::vector<uint64_t>{1, 2, 3}));
  Record(recorder, 4, 4);
  EXPECT_EQ(Steps(recorder), (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(recorder.dropped(), 0u);
  Record(recorder, 5, 10);
  EXPECT_EQ(Steps(recorder), (std::vector<uint64_t>{7, 8, 9, 10}));
  EXPECT_EQ(recorder.recorded(), 10u);
  EXPECT_EQ(recorder.dropped(), 6u);
  Record(recorder, 11, 12);
  EXPECT_EQ(Steps(recorder), (std::vector<uint64_t>{9, 10, 11, 12}));
}

TEST(SpanRecorder, MayHaveRoomForOneOnly) {
  SpanRecorder recorder(1);
  Record(recorder, 1, 5);
  EXPECT_EQ(Steps(recorder), (std::vector<uint64_t>{5}));
  EXPECT_EQ(recorder.dropped(), 4u);
}

}  // namespace
}  // namespace engine::trace
