// Rows of tables, and what a table refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "table.h"
#include "table_bench.h"

namespace engine::zmq_ps {
namespace {

// Pushes rows of three workers, all rows of `dense_worker`, and compares with dense gradients.
void PushRowsAndCompare(UpdateMode mode, const std::vector<std::vector<int32_t>>& rows,
                        uint32_t dense_worker, bool run_between) {
  TableBench bench(mode, 3);
  std::vector<Floats> dense;
  for (uint32_t worker = 0; worker < 3; ++worker) {
    Floats gradient(kCount), data;
    for (const int32_t row : rows[worker]) {
      Floats part = RandomFloats(100, 1000u * worker + static_cast<uint64_t>(row));
      part[7] = -0.0f;
      data.insert(data.end(), part.begin(), part.end());
      std::copy(part.begin(), part.end(), gradient.begin() + (row - 50) * 100);
    }
    if (worker == dense_worker) {
      gradient = RandomFloats(kCount, 77);
      gradient[5000] = -0.0f;
      bench.Push(worker, 1, gradient);
    } else {
      const Status status = bench.TryPushRows(worker, 1, rows[worker], data);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    dense.push_back(gradient);
    if (run_between) bench.RunAll();
  }
  bench.RunAll();
  if (mode == UpdateMode::kSync) {
    bench.PlainUpdate(SumOf(dense), 6, 1);
  } else {
    for (uint64_t i = 0; i < 3; ++i) bench.PlainUpdate(dense[i], 2, i + 1);
  }
  bench.ExpectAsPlain();
}

// Rows 50 to 149 of the unit lie in the cell; -0 and 0 differ.
TEST(TableRows, ArePushedAsADenseGradientOfZerosElsewhere) {
  const std::vector<int32_t> some = {50, 90, 91, 149}, others = {60, 90, 131}, none;
  for (const auto& rows : {std::vector{some, others, none}, std::vector{some, none, none},
                           std::vector{none, some, others}, std::vector{none, none, none}}) {
    for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kAsync}) {
      for (const uint32_t dense_worker : {0u, 1u, 2u, 3u}) {
        PushRowsAndCompare(mode, rows, dense_worker, false);
        PushRowsAndCompare(mode, rows, dense_worker, true);
      }
    }
  }
}

TEST(TableRows, ArePulledAlone) {
  TableBench bench(UpdateMode::kAsync, 1);
  const std::vector<int32_t> rows = {50, 77, 149};
  const auto pull = [&](std::span<const int32_t> some, uint64_t request) {
    return bench.table.Pull(0, bench.spec.id, {.request = request, .sparse = true, .rows = some});
  };
  ASSERT_TRUE(pull(rows, 1).ok());
  ASSERT_TRUE(pull({}, 2).ok());
  const std::vector<PullAnswer> answers = bench.Answers();
  ASSERT_EQ(answers.size(), 2u);
  Floats expected;
  for (const int32_t row : rows) {
    const auto at = bench.plain.values.begin() + (row - 50) * 100;
    expected.insert(expected.end(), at, at + 100);
  }
  EXPECT_TRUE(SameBits(FloatsOf(answers[0].data), expected));
  EXPECT_EQ(answers[1].data.size(), 0u);
  // A copy of rows does not keep an update from working in place.
  bench.Push(0, 1, Floats(kCount, 1));
  bench.RunAll();
  EXPECT_EQ(bench.table.counters().copies, 0u);
}

TEST(TableRows, AreCheckedBeforeAnythingIsDone) {
  TableBench bench(UpdateMode::kSync, 1);
  const std::vector<std::vector<int32_t>> wrong = {{49},        {150},    {-1},    {INT32_MAX},
                                                   {INT32_MIN}, {60, 60}, {61, 60}};
  for (const std::vector<int32_t>& rows : wrong) {
    const Status push = bench.TryPushRows(0, 1, rows, Floats(100 * rows.size()));
    EXPECT_EQ(push.code(), StatusCode::kInvalidArgument);
    Says(push, "rows that are not ascending rows of the slice");
    const PullSpec pull{.request = 1, .sparse = true, .rows = rows};
    Says(bench.table.Pull(0, bench.spec.id, pull), "not ascending rows");
  }
  Says(bench.TryPushRows(0, 1, {60, 61}, Floats(199)), "more or less data than it says");
  CellSpec flat = SpecOf(9);
  flat.row = 0;
  ASSERT_TRUE(bench.table.Register(0, flat).ok());
  const std::vector<int32_t> row = {60};
  const PullSpec pull{.request = 1, .sparse = true, .rows = row};
  Says(bench.table.Pull(0, flat.id, pull), "rows of a unit that has no rows");
}

TEST(Table, TheFirstDescriptionCounts) {
  TableBench bench(UpdateMode::kSync, 3);
  EXPECT_TRUE(bench.table.Register(2, bench.spec).ok());
  const auto refused = [&](auto change) {
    CellSpec other = bench.spec;
    change(other);
    const Status status = bench.table.Register(1, other);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.rank(), 1);
    Says(status, "rank 1 describes slice 1 of unit 0000000000000007");
    Says(status, "but rank 0 as elements 5000 to 15000 of 20000 in 3 slices");
  };
  refused([](CellSpec& spec) { spec.slices = 4; });
  refused([](CellSpec& spec) { spec.offset = 4000; });
  refused([](CellSpec& spec) { spec.total = 30000; });
  refused([](CellSpec& spec) { spec.row = 50; });
  refused([](CellSpec& spec) { spec.spans = {{10000, 1, 0}}; });
  refused([](CellSpec& spec) { spec.spans[1].weight_decay_scale = 1; });
  refused([](CellSpec& spec) {
    spec.count = 5000;
    spec.spans = {{5000, 1, 0}};
  });
}

TEST(Table, RefusesDescriptionsThatMakeNoSense) {
  MomentumOptimizer optimizer;
  Table table(SettingsOf(UpdateMode::kSync, 2), optimizer);
  const auto refused = [&](const char* why, auto change) {
    CellSpec spec = SpecOf();
    change(spec);
    const Status status = table.Register(1, spec);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    Says(status, why);
  };
  constexpr uint64_t kHuge = UINT64_MAX;
  refused("without a key", [](CellSpec& spec) { spec.id.unit = 0; });
  refused("number of slices", [](CellSpec& spec) { spec.slices = 0; });
  refused("number of slices", [](CellSpec& spec) { spec.id.slice = 3; });
  refused("number of slices", [](CellSpec& spec) { spec.slices = UINT32_MAX; });
  refused("outside of the unit", [](CellSpec& spec) { spec.total = kHuge; });
  refused("outside of the unit", [](CellSpec& spec) { spec.offset = kHuge; });
  refused("outside of the unit", [](CellSpec& spec) { spec.count = kHuge; });
  refused("outside of the unit", [](CellSpec& spec) { spec.total = 14999; });
  refused("too large", [](CellSpec& spec) {
    spec.total = uint64_t{1} << 40;
    spec.count = spec.total - spec.offset;
  });
  refused("not whole rows", [](CellSpec& spec) { spec.row = 3; });
  refused("not whole rows", [](CellSpec& spec) { spec.row = kHuge; });
  refused("do not fit", [](CellSpec& spec) { spec.spans[0].count = -1; });
  refused("do not fit", [](CellSpec& spec) { spec.spans[0].count = 0; });
  refused("do not fit", [](CellSpec& spec) { spec.spans[0].count = INT64_MAX; });
  refused("do not fill", [](CellSpec& spec) { spec.spans.pop_back(); });
  refused("weight decay", [](CellSpec& spec) { spec.spans[0].weight_decay_scale = -1; });
  refused("weight decay", [](CellSpec& spec) { spec.spans[0].weight_decay_scale = NAN; });
  EXPECT_FALSE(table.Register(2, SpecOf()).ok());
  EXPECT_EQ(table.LastStep(0), Table::kNoCells);
}

TEST(Table, RefusesWhatDoesNotFitTheCell) {
  TableBench bench(UpdateMode::kSync, 2);
  const Floats data(kCount);
  const auto push = [&](const PushSpec& spec, size_t count = kCount) {
    return bench.table.Push(0, bench.spec.id, spec, MessageOf(Floats(count)));
  };
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  Says(push({.step = 1}, kCount - 1), "more or less data");
  Says(push({.step = 1}, 0), "more or less data");
  Says(push({.step = 0}), "step out of range");
  Says(push({.step = UINT64_MAX}), "step out of range");
  Says(push({.step = 1, .learning_rate = NAN}), "learning rate");
  Says(push({.step = 1, .weight = kInfinite}), "weight");
  Says(push({.step = 1, .weight = -1}), "weight");
  Says(bench.table.Store(0, bench.spec.id, -1, MessageOf(Floats(3))), "more or less data");
  Says(bench.table.Store(0, bench.spec.id, 2, MessageOf(data)), "does not have");
  Says(bench.table.Pull(0, bench.spec.id, {.request = 1, .state = 2}), "does not have");
  Says(bench.table.Pull(0, bench.spec.id, {.request = 1, .step = UINT64_MAX}), "out of range");
  Says(bench.table.Pull(0, {7, 2}, {.request = 1}), "which no rank has described");
  Says(bench.table.Pull(2, bench.spec.id, {.request = 1}), "there is no rank 2");
  Says(bench.table.Push(2, bench.spec.id, {.step = 1}, MessageOf(data)), "there is no rank 2");
  for (uint64_t i = 0; i < 8; ++i) bench.Pull(0, 1, i);
  Says(bench.table.Pull(0, bench.spec.id, {.request = 9, .step = 1}), "too many pulls");
  EXPECT_EQ(bench.table.LastStep(0), 0u);
}

TEST(Table, RefusesAnOptimizerThatNeedsMoreThanASlice) {
  MomentumOptimizer optimizer;
  optimizer.gate = UpdateGate::kTensor;
  Table table(SettingsOf(UpdateMode::kSync, 1), optimizer);
  const Status status = table.Register(0, SpecOf());
  EXPECT_EQ(status.code(), StatusCode::kConfig);
  Says(status, "whole gradients");
}

TEST(Table, AFailedUpdateFailsTheCellAlone) {
  TableBench bench(UpdateMode::kAsync, 2);
  const CellSpec other = SpecOf(8);
  ASSERT_TRUE(bench.table.Register(0, other).ok());
  ASSERT_TRUE(bench.table.Store(0, other.id, -1, MessageOf(Floats(kCount))).ok());
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
  Says(answers[1].status, "unit 0000000000000007 at step 2: the optimizer does not like step 2");
  EXPECT_EQ(bench.TryPush(0, 3, Floats(kCount)).code(), StatusCode::kDevice);
  EXPECT_EQ(bench.table.Pull(0, bench.spec.id, {.request = 3}).code(), StatusCode::kDevice);
  EXPECT_EQ(bench.table.NextWork(), nullptr);
  EXPECT_TRUE(bench.table.Pull(0, other.id, {.request = 4}).ok());
  EXPECT_EQ(bench.Answered(), Requests{4});
}

TEST(Table, ACancelledPullIsNotAnswered) {
  TableBench bench(UpdateMode::kAsync, 1);
  bench.Pull(0, 1, 100);
  bench.Pull(0, 1, 101);
  EXPECT_TRUE(bench.table.Cancel(0, bench.spec.id, 100));
  EXPECT_FALSE(bench.table.Cancel(0, bench.spec.id, 100));
  bench.Push(0, 1, Floats(kCount, 1));
  bench.RunAll();
  EXPECT_EQ(bench.Answered(), Requests{101});
  EXPECT_FALSE(bench.table.Cancel(0, bench.spec.id, 101));
}

TEST(Table, AnswersToALostWorkerAreForgotten) {
  TableBench bench(UpdateMode::kAsync, 2);
  bench.Pull(0, 0, 100);
  bench.Pull(1, 0, 101);
  bench.table.Lose(0);
  bench.table.Join(0);
  EXPECT_EQ(bench.Answered(), Requests{101});
}

TEST(Table, ACellMayBeEmpty) {
  MomentumOptimizer optimizer;
  Table table(SettingsOf(UpdateMode::kSync, 2), optimizer);
  CellSpec spec;
  spec.id = {3, 0};
  ASSERT_TRUE(table.Register(0, spec).ok());
  ASSERT_TRUE(table.Store(0, spec.id, -1, {}).ok());
  for (uint32_t worker = 0; worker < 2; ++worker) {
    ASSERT_TRUE(table.Push(worker, spec.id, {.step = 1}, {}).ok());
  }
  UpdateTask* const task = table.NextWork();
  ASSERT_NE(task, nullptr);
  zmq_ps::Run(*task);
  table.Finished(task);
  ASSERT_TRUE(table.Pull(1, spec.id, {.request = 5, .step = 1}).ok());
  std::vector<PullAnswer> answers;
  table.TakeReady(&answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].data.size(), 0u);
}

}  // namespace
}  // namespace engine::zmq_ps
