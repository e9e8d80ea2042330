#include "table.h"

#include <gtest/gtest.h>

#include <vector>

#include "table_bench.h"

namespace engine::zmq_ps {
namespace {

TEST(TableSync, RefusesWorkersThatDisagree) {
  TableBench bench(UpdateMode::kSync, 3);
  bench.Push(2, 4, Floats(kCount, 1));
  const Status step = bench.TryPush(1, 5, Floats(kCount, 1));
  EXPECT_EQ(step.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(step.rank(), 1);
  Says(step, "rank 1 pushed step 5 of bucket 0000000000000007, but rank 2 pushed step 4");
  const Status rate = bench.TryPush(0, 4, Floats(kCount, 1), 2, 0.25f);
  EXPECT_EQ(rate.code(), StatusCode::kInvalidArgument);
  Says(rate, "with learning rate 0.25, but rank 2 with 0.1");
  // What was refused is not there.
  EXPECT_EQ(bench.table.LastStep(1), 0u);
  bench.Push(1, 4, Floats(kCount, 1));
  bench.Push(0, 4, Floats(kCount, 1));
  bench.RunAll();
  EXPECT_EQ(bench.updates, 1);
}

TEST(TableSync, AWorkerMayPushAheadABit) {
  TableBench bench(UpdateMode::kSync, 2);
  for (uint64_t step = 1; step <= 4; ++step) bench.Push(0, step, Floats(kCount, 1));
  Says(bench.TryPush(0, 5, Floats(kCount, 1)), "pull before the next push");
  for (uint64_t step = 1; step <= 4; ++step) {
    bench.Push(1, step, Floats(kCount, 2));
    bench.RunAll();
    bench.PlainUpdate(Floats(kCount, 3), 4, step);
  }
  bench.ExpectAsPlain();
}

TEST(TableSync, AStepAheadOfAnothersIsRefusedAlsoWhileAnUpdateRuns) {
  TableBench bench(UpdateMode::kSync, 2);
  bench.Push(0, 1, Floats(kCount, 1));
  bench.Push(0, 2, Floats(kCount, 1));
  bench.Push(1, 1, Floats(kCount, 1));
  UpdateTask& task = bench.Due();
  const Status status = bench.TryPush(1, 3, Floats(kCount, 1));
  Says(status, "rank 1 pushed step 3 of bucket 0000000000000007, but rank 0 pushed step 2");
  bench.End(task);
  bench.Push(1, 2, Floats(kCount, 1));
  bench.RunAll();
  EXPECT_EQ(bench.updates, 2);
}

TEST(TableAsync, UpdatesAreCountedFromTheStepOfAContinuedRun) {
  TableBench bench(UpdateMode::kAsync, 2);
  const Floats gradient(kCount, 1);
  bench.Push(0, 101, gradient);
  bench.Push(1, 101, gradient);
  bench.Push(1, 109, gradient);
  bench.RunAll();
  for (const uint64_t number : {101, 102, 109}) bench.PlainUpdate(gradient, 2, number);
  bench.ExpectAsPlain();
}

TEST(TableAsync, APullWaitsForTheOwnPush) {
  TableBench bench(UpdateMode::kAsync, 2);
  bench.Pull(0, 1, 100);  // overtook its push
  bench.Pull(1, 0, 101);
  EXPECT_EQ(bench.Answered(), Requests{101});
  EXPECT_EQ(bench.Missing(0, 1), Ranks{0});
  bench.Push(0, 1, Floats(kCount, 1));
  bench.Pull(0, 0, 102);
  UpdateTask& task = bench.Due();
  bench.Pull(1, 0, 103);  // an update runs in the memory that it wants to see
  EXPECT_EQ(bench.Answered(), Requests{});
  bench.End(task);
  EXPECT_EQ(bench.Answered(), (Requests{100, 102, 103}));
}

TEST(TableBounded, APullWaitsForOthersThatAreTooFarBehind) {
  TableBench bench(UpdateMode::kBounded, 3, 2);
  // A run that goes on at step 101: who has not pushed is at 100.
  for (uint64_t step = 101; step <= 102; ++step) {
    bench.Push(0, step, Floats(kCount, 1));
    bench.Pull(0, step, step);
    bench.RunAll();
    EXPECT_EQ(bench.Answered(), Requests{step});
  }
  bench.Push(0, 103, Floats(kCount, 1));
  bench.Pull(0, 103, 103);
  bench.RunAll();
  EXPECT_EQ(bench.Answered(), Requests{});
  EXPECT_EQ(bench.Missing(0, 103), (Ranks{1, 2}));
  bench.Push(2, 101, Floats(kCount, 1));
  bench.RunAll();
  EXPECT_EQ(bench.Answered(), Requests{});
  EXPECT_EQ(bench.Missing(0, 103), Ranks{1});
  bench.Push(1, 101, Floats(kCount, 1));
  EXPECT_EQ(bench.Missing(0, 103), Ranks{});
  EXPECT_EQ(bench.Answered(), Requests{});
  bench.RunAll();
  EXPECT_EQ(bench.Answered(), Requests{103});
}

TEST(TableBounded, OneThatJoinsIsWaitedForFromItsFirstPushOnWithTheClockOfTheOthers) {
  TableBench bench(UpdateMode::kBounded, 3, 1);
  const Floats gradient(kCount, 1);
  const auto push_and_pull = [&](uint32_t worker, uint64_t step) {
    bench.Push(worker, step, gradient);
    bench.Pull(worker, step, 1000 * worker + step);
    bench.RunAll();
  };
  for (uint32_t worker = 0; worker < 3; ++worker) push_and_pull(worker, 1);
  bench.table.Lose(2);
  for (uint64_t step = 2; step <= 20; ++step) {
    push_and_pull(0, step);
    push_and_pull(1, step);
  }
  bench.Answered();
  bench.table.Join(2);
  EXPECT_EQ(bench.table.LastStep(2), 1u);
  // It loads: nobody waits yet.
  bench.Pull(2, 0, 5);
  push_and_pull(0, 21);
  EXPECT_EQ(bench.Answered(), (Requests{5, 21}));
  push_and_pull(1, 21);
  EXPECT_EQ(bench.Answered(), Requests{1021});
  // Its step 2 counts as 22, since the others are at 21; its own pull does not wait.
  push_and_pull(2, 2);
  EXPECT_EQ(bench.Answered(), Requests{2002});
  push_and_pull(0, 22);
  push_and_pull(1, 22);
  push_and_pull(0, 23);
  EXPECT_EQ(bench.Answered(), (Requests{22, 1022, 23}));
  push_and_pull(1, 23);
  push_and_pull(0, 24);  // needs 23 of all
  EXPECT_EQ(bench.Answered(), Requests{1023});
  EXPECT_EQ(bench.Missing(0, 24), Ranks{2});
  push_and_pull(2, 3);
  EXPECT_EQ(bench.Answered(), (Requests{24, 2003}));
}

TEST(TableBounded, OneThatJoinsFirstOfAllHoldsNobodyBack) {
  TableBench bench(UpdateMode::kBounded, 2, 0);
  bench.table.Lose(1);
  bench.Push(0, 1, Floats(kCount, 1));
  bench.Pull(0, 1, 100);
  bench.RunAll();
  EXPECT_EQ(bench.Answered(), Requests{100});
  bench.table.Lose(0);
  bench.table.Join(1);
  bench.Push(1, 1, Floats(kCount, 1));
  bench.Pull(1, 1, 101);
  bench.RunAll();
  EXPECT_EQ(bench.Answered(), Requests{101});
}

TEST(ServedArray, KeepsOneSpareVersion) {
  ServedArray array;
  ASSERT_TRUE(array.Allocate(100));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(array.newest()) % 64, 0u);
  std::vector<::zmq::message_t> held;
  for (int i = 0; i < 5; ++i) {
    held.push_back(array.Share(100));
    ASSERT_NE(array.Writable(100), array.newest());
    array.Publish();
    EXPECT_EQ(array.versions(), held.size() + 1);
  }
  held.clear();
  EXPECT_EQ(array.Writable(100), array.newest());
  array.Publish();
  EXPECT_EQ(array.versions(), 2u);
  // The spare one is what the next copy uses.
  held.push_back(array.Share(100));
  ASSERT_NE(array.Writable(100), array.newest());
  EXPECT_EQ(array.versions(), 2u);
}

TEST(Table, AnAnswerIsAsItWasAfterAStoreAndWithoutItsTable) {
  std::vector<PullAnswer> held;
  Floats values;
  {
    TableBench bench(UpdateMode::kAsync, 1);
    values = bench.plain.values;
    bench.Pull(0, 0, 1);
    held = bench.Answers();
    ASSERT_TRUE(bench.Store(-1, Floats(kCount, 4)).ok());
    EXPECT_EQ(bench.Now(), Floats(kCount, 4));
  }
  ASSERT_EQ(held.size(), 1u);
  EXPECT_TRUE(SameBits(FloatsOf(held[0].data), values));
}

TEST(Table, WaitsForValues) {
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kBounded, UpdateMode::kAsync}) {
    TableBench bench(mode, 2, 0, false);
    bench.Pull(1, 0, 1);
    bench.Pull(1, 0, 2, 1);
    const Floats gradient = RandomFloats(kCount, 5);
    bench.Push(0, 1, gradient);
    bench.Push(1, 1, gradient);
    EXPECT_EQ(bench.table.NextWork(), nullptr);
    EXPECT_EQ(bench.Answered(), Requests{});
    // States alone release nobody.
    bench.plain.states[0] = RandomFloats(kCount, 6);
    ASSERT_TRUE(bench.Store(0, bench.plain.states[0]).ok());
    EXPECT_EQ(bench.table.NextWork(), nullptr);
    EXPECT_EQ(bench.Answered(), Requests{});
    ASSERT_TRUE(bench.Store(-1, bench.plain.values).ok());
    bench.RunAll();
    EXPECT_EQ(bench.Answered(), (Requests{1, 2}));
    if (mode == UpdateMode::kSync) {
      bench.PlainUpdate(SumOf({gradient, gradient}), 4, 1);
    } else {
      bench.PlainUpdate(gradient, 2, 1);
      bench.PlainUpdate(gradient, 2, 2);
    }
    bench.ExpectAsPlain();
  }
}

TEST(Table, RefusesAStoreWhileAnUpdateRuns) {
  TableBench bench(UpdateMode::kAsync, 1);
  bench.Push(0, 1, Floats(kCount, 1));
  UpdateTask& task = bench.Due();
  Says(bench.Store(-1, Floats(kCount)), "under way");
  bench.End(task);
  EXPECT_TRUE(bench.Store(-1, Floats(kCount)).ok());
}

}  // namespace
}  // namespace engine::zmq_ps
