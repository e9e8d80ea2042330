// Rows of tables, and what a table refuses.
#include <gtest/gtest.h>

#include <vector>

#include "table.h"
#include "table_bench.h"

namespace engine::zmq_ps {
namespace {

// A copy of rows does not keep an update from working in place.
TEST(TableRows, ArePulledAsACopy) {
  TableBench bench(UpdateMode::kAsync, 1);
  const std::vector<int32_t> rows = {50, 77, 149};
  ASSERT_TRUE(bench.TryPull(0, {.rows = 3}, 1, rows).ok());
  const std::vector<PullAnswer> answers = bench.Answers();
  bench.Push(0, 1, Floats(kCount, 1));
  bench.RunAll();
  EXPECT_EQ(bench.copies, 0);
}

TEST(TableRows, AreCheckedBeforeAnythingIsDone) {
  TableBench bench(UpdateMode::kSync, 1);
  const std::vector<std::vector<int32_t>> wrong = {{49},        {150},    {-1},    {INT32_MAX},
                                                   {INT32_MIN}, {60, 60}, {61, 60}};
  for (const std::vector<int32_t>& rows : wrong) {
    const Status push = bench.TryPushRows(0, 1, rows, Floats(100 * rows.size()));
    EXPECT_EQ(push.code(), StatusCode::kInvalidArgument);
    Says(push, "rows that are not ascending rows of the slice");
    Says(bench.TryPull(0, {.rows = 1}, 1, rows), "not ascending rows");
  }
  Says(bench.TryPushRows(0, 1, {60, 61}, Floats(199)), "more or less data than it says");
  ASSERT_TRUE(bench.table.Register(RequestOf(Operation::kRegister, 0, {}, 9), kSpans).ok());
  Says(bench.TryPull(0, {.rows = 1}, 1, wrong[5], 9), "rows of a bucket that has no rows");
}

TEST(Table, TheFirstDescriptionCounts) {
  TableBench bench(UpdateMode::kSync, 3);
  EXPECT_TRUE(bench.table.Register(RegistrationOf(2), kSpans).ok());
  using Change = void (*)(Header&, std::vector<ServedSpan>&);
  const Change changes[] = {
      [](Header& request, auto&) { request.spec.slices = 4; },
      [](Header& request, auto&) { request.spec.offset = 4000; },
      [](Header& request, auto&) { request.spec.total = 30000; },
      [](Header& request, auto&) { request.served.row = 50; },
      [](Header&, auto& spans) {
        spans = {{10000, 1, 0}};
      },
      [](Header&, auto& spans) { spans[1].weight_decay_scale = 1; },
      [](Header& request, auto& spans) {
        request.spec.count = 5000;
        spans = {{5000, 1, 0}};
      },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    SCOPED_TRACE(i);
    Header request = RegistrationOf(1);
    std::vector<ServedSpan> spans = kSpans;
    changes[i](request, spans);
    const Status status = bench.table.Register(request, spans);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.rank(), 1);
    Says(status, "rank 1 describes slice 1 of bucket 0000000000000007");
    Says(status, "but rank 0 as elements 5000 to 15000 of 20000 in 3 slices");
  }
}

// What Decode cannot see: rows, and the spans behind the header.
TEST(Table, RefusesDescriptionsThatMakeNoSense) {
  MomentumOptimizer optimizer;
  Table table(TraitsOf(UpdateMode::kSync), 2, optimizer);
  const auto refused = [&](const char* why, uint64_t row, const std::vector<ServedSpan>& spans) {
    const Header request = RequestOf(Operation::kRegister, 1, {.row = row});
    const Status status = table.Register(request, spans);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    Says(status, why);
  };
  refused("not whole rows", 3, kSpans);
  refused("not whole rows", UINT64_MAX, kSpans);
  for (const int64_t count : {int64_t{-1}, int64_t{0}, INT64_MAX}) {
    refused("do not fit", 100, {{count, 1, 0}, {10000, 1, 0}});
  }
  refused("do not fill", 100, {{9999, 1, 0}});
  refused("weight decay", 100, {{10000, -1, 0}});
  refused("weight decay", 100, {{10000, NAN, 0}});
  Header empty = RequestOf(Operation::kRegister, 1);
  empty.spec.count = 0;
  Says(table.Register(empty, {}), "without elements");
  EXPECT_EQ(table.LastStep(0), Table::kNoCells);
  optimizer.gate = UpdateGate::kTensor;
  Table gated(TraitsOf(UpdateMode::kSync), 1, optimizer);
  const Status status = gated.Register(RegistrationOf(0), kSpans);
  EXPECT_EQ(status.code(), StatusCode::kConfig);
  Says(status, "whole gradients");
}

TEST(Table, RefusesWhatDoesNotFitTheCell) {
  TableBench bench(UpdateMode::kSync, 2);
  const Floats data(kCount), few(3);
  const auto push = [&](const ServedFields& served, size_t count = kCount) {
    return bench.TryPush(0, served, {}, Floats(count));
  };
  Says(push({.step = 1}, kCount - 1), "more or less data");
  Says(push({.step = 1}, 0), "more or less data");
  Says(bench.Store(-1, few), "more or less data");
  Says(bench.Store(2, data), "does not have");
  Says(bench.TryPull(0, {.state = 2}), "does not have");
  Says(bench.TryPull(0, {}, 1, {}, 8), "no rank has described");
  EXPECT_EQ(bench.table.LastStep(0), 0u);
}

TEST(Table, AFailedUpdateFailsTheCellAlone) {
  TableBench bench(UpdateMode::kAsync, 2);
  ASSERT_TRUE(bench.table.Register(RegistrationOf(0, 8), kSpans).ok());
  ASSERT_TRUE(bench.Store(-1, Floats(kCount), 8).ok());
  bench.optimizer.failing_step = 2;
  bench.Push(0, 1, Floats(kCount, 1));
  bench.Push(1, 1, Floats(kCount, 1));
  bench.Push(0, 2, Floats(kCount, 1));
  bench.Pull(0, 1, 100);
  bench.Pull(0, 2, 101);
  bench.RunAll();
  const std::vector<PullAnswer> answers = bench.Answers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_TRUE(answers[0].status.ok());
  EXPECT_EQ(answers[1].status.code(), StatusCode::kDevice);
  Says(answers[1].status, "bucket 0000000000000007 at step 2: the optimizer does not like step 2");
  EXPECT_EQ(bench.TryPush(0, 3, Floats(kCount)).code(), StatusCode::kDevice);
  EXPECT_EQ(bench.TryPull(0, {}).code(), StatusCode::kDevice);
  EXPECT_EQ(bench.table.NextWork(), nullptr);
  EXPECT_TRUE(bench.TryPull(0, {}, 4, {}, 8).ok());
  EXPECT_EQ(bench.Answered(), Requests{4});
}

TEST(Table, AnswersToALostWorkerAreForgotten) {
  TableBench bench(UpdateMode::kAsync, 2);
  bench.Pull(0, 0, 100);
  bench.Pull(1, 0, 101);
  bench.table.Lose(0);
  bench.table.Join(0);
  EXPECT_EQ(bench.Answered(), Requests{101});
}

}  // namespace
}  // namespace engine::zmq_ps
