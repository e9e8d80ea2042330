#include "kit/work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace engine::kit {
namespace {

constexpr Transfer kTransfer{.count = 10, .sequence = 4};

PooledWork* Take(WorkPool& pool) {
  auto work = pool.Take(kTransfer);
  EXPECT_TRUE(work.ok()) << work.status().message();
  return *work;
}

void Count(void* counter) {
  ++*static_cast<std::atomic<int>*>(counter);
}

TEST(PooledWork, GivesItsOutcomeEveryTime) {
  WorkPool pool(0, WorkPool::Of<PooledWork>());
  PooledWork* const work = Take(pool);
  EXPECT_EQ(work->state(), WorkState::kPending);
  EXPECT_EQ(work->started_ns(), 0);
  EXPECT_EQ(work->WaitHost(1).code(), StatusCode::kTimeout);
  EXPECT_STREQ(work->WaitHost(1).message(),
               "all-reduce of 40 B (sequence 4) is still pending after a wait of 1 ms");
  work->MarkStarted(7);
  work->MarkStarted(9);
  EXPECT_EQ(work->started_ns(), 7);
  work->Complete(Status::Error(StatusCode::kPeerLost, "gone"));
  EXPECT_EQ(work->state(), WorkState::kFailed);
  for (int i = 0; i < 2; ++i) EXPECT_STREQ(work->WaitHost(0).message(), "gone");
  work->Release();
}

TEST(PooledWork, CallsBackOnceBeforeOrAfterTheEnd) {
  WorkPool pool(0, WorkPool::Of<PooledWork>());
  std::atomic<int> calls{0};
  PooledWork* work = Take(pool);
  work->OnDone(Count, &calls);
  EXPECT_EQ(calls, 0);
  work->Complete({});
  EXPECT_EQ(calls, 1);
  work->Release();
  work = Take(pool);
  work->Complete({});
  work->OnDone(Count, &calls);
  EXPECT_EQ(calls, 2);
  work->Release();
}

TEST(PooledWork, AReleasedOneGoesOnAndThenIsUsedAgain) {
  WorkPool pool(0, WorkPool::Of<PooledWork>());
  std::atomic<int> calls{0};
  PooledWork* const work = Take(pool);
  work->OnDone(Count, &calls);
  work->Release();
  PooledWork* const other = Take(pool);
  EXPECT_NE(other, work);
  work->Complete({});
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(Take(pool), work);
  work->Complete({});
  work->Release();
  other->Complete({});
  other->Release();
}

TEST(PooledWork, OutlivesThePoolsOwner) {
  auto pool = std::make_unique<WorkPool>(3, WorkPool::Of<PooledWork>());
  PooledWork* const work = Take(*pool);
  pool.reset();
  work->Complete({});
  EXPECT_TRUE(work->WaitHost(0).ok());
  work->Release();  // the address sanitizer sees what this leaves
}

TEST(WorkPool, MakesNewOnesOnlyForMoreInUseThanEverBefore) {
  int made = 0;
  WorkPool pool(2, [&] {
    ++made;
    return Result<std::unique_ptr<PooledWork>>(std::make_unique<PooledWork>());
  });
  PooledWork* works[3];
  for (int round = 0; round < 5; ++round) {
    for (PooledWork*& work : works) work = Take(pool);
    for (PooledWork* work : works) {
      work->Complete({});
      work->Release();
    }
    EXPECT_EQ(made, 5);
  }
}

TEST(WorkPool, SaysWhyThereIsNoWork) {
  WorkPool pool(0, []() -> Result<std::unique_ptr<PooledWork>> {
    return Status::Error(StatusCode::kDevice, "no event");
  });
  EXPECT_STREQ(pool.Take(kTransfer).status().message(), "no event");
}

// One thread ends works while others wait, poll, call back and release, in every order.
TEST(PooledWork, EndsOnceForAllThreads) {
  constexpr int kRounds = 1000;
  WorkPool pool(1, WorkPool::Of<PooledWork>());
  std::atomic<PooledWork*> handed{nullptr};
  std::atomic<int> calls{0};
  std::atomic<bool> stop{false};
  std::thread lane([&] {
    while (!stop) {
      if (PooledWork* const work = handed.exchange(nullptr)) {
        if (work->transfer().sequence % 3 == 0) std::this_thread::yield();
        work->Complete(work->transfer().sequence % 2 == 0
                           ? Status()
                           : Status::Error(StatusCode::kPeerLost, "odd"));
      } else {
        std::this_thread::yield();
      }
    }
  });
  for (uint64_t round = 0; round < kRounds; ++round) {
    auto work = pool.Take({.sequence = round});
    ASSERT_TRUE(work.ok());
    handed = *work;
    if (round % 5 != 0) (*work)->OnDone(Count, &calls);
    if (round % 4 != 0) {
      EXPECT_EQ((*work)->WaitHost(10000).ok(), round % 2 == 0);
    }
    (*work)->Release();
    while (handed) std::this_thread::yield();
  }
  stop = true;
  lane.join();
  EXPECT_EQ(calls, kRounds - kRounds / 5);
}

}  // namespace
}  // namespace engine::kit
