#include "kit/lanes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace engine::kit {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kMovesUntilEnough = 1 << 20;

// Notes what it runs; a transfer of count 1 fails, one of count 2 goes on until the failure, one of
// count 3 moves a little for half a second, one of count kMovesUntilEnough until then, and one of
// count 4 ends after 20 ms.
class FakeTransport final : public Transport {
 public:
  FakeTransport(Progress& progress, const std::atomic<bool>& stopped,
                const std::atomic<bool>& enough, std::vector<uint64_t>& sequences)
      : progress_(progress), stopped_(stopped), enough_(enough), sequences_(sequences) {}
  Status Run(PooledWork& work) noexcept override {
    work.MarkStarted();
    const Transfer& transfer = work.transfer();
    sequences_.push_back(transfer.sequence);
    if (transfer.count == 1) return Status::Error(StatusCode::kDevice, "broken");
    while (transfer.count == 2 && !stopped_) std::this_thread::sleep_for(milliseconds(1));
    for (int i = 0; transfer.count == 3 && i < 50 && !stopped_; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      progress_.Moved(1);
    }
    const auto end = DeadlineIn(10000);  // that only a bug reaches
    while (transfer.count == kMovesUntilEnough && !enough_ && Clock::now() < end) {
      progress_.Moved(1);
    }
    if (transfer.count == 4) std::this_thread::sleep_for(milliseconds(20));
    return stopped_ ? Status::Error(StatusCode::kPeerLost, "stopped") : Status();
  }
  int32_t WaitingFor() const noexcept override { return 5; }

 private:
  Progress& progress_;
  const std::atomic<bool>&stopped_, &enough_;
  std::vector<uint64_t>& sequences_;
};

struct Rig {
  explicit Rig(size_t count)
      : sequences(count),
        lanes("test", Fakes(), std::chrono::microseconds(20), failure, progress) {}
  Work* Submit(Transfer transfer) {
    Work* work = nullptr;
    const Status status = lanes.Submit(transfer, &work);
    EXPECT_TRUE(status.ok()) << status.message();
    return work;
  }

  Transports Fakes() {
    Transports fakes;
    for (auto& one : sequences) {
      fakes.push_back(std::make_unique<FakeTransport>(progress, stopped, enough, one));
    }
    return fakes;
  }

  Progress progress;
  std::atomic<bool> stopped{false}, enough{false};
  std::vector<std::vector<uint64_t>> sequences;  // that each lane has run
  Failure failure{[this](const Status&, bool) { stopped = true; }};
  Lanes lanes;
};

TEST(Lanes, TakeTransfersInTurn) {
  Rig rig(2);
  std::vector<Work*> works;
  for (uint64_t i = 0; i < 6; ++i) works.push_back(rig.Submit({.sequence = i}));
  for (Work* work : works) {
    while (work->state() == WorkState::kPending) std::this_thread::yield();
    EXPECT_TRUE(work->WaitHost(0).ok());
    EXPECT_GT(work->started_ns(), 0);
    work->Release();
  }
  EXPECT_EQ(rig.sequences, (std::vector<std::vector<uint64_t>>{{0, 2, 4}, {1, 3, 5}}));
}

TEST(Lanes, AFailureEndsWhatIsPendingAndWhatComes) {
  Rig rig(1);
  Work* const first = rig.Submit({.count = 2, .sequence = 1});
  Work* const second = rig.Submit({.count = 1, .sequence = 2});
  rig.failure.Abort(Status::Error(StatusCode::kInterrupted, "enough"));
  for (Work* work : {first, second}) {
    EXPECT_STREQ(work->WaitHost(5000).message(), "enough");
    work->Release();
  }
  Work* none = nullptr;
  EXPECT_STREQ(rig.lanes.Submit({}, &none).message(), "enough");
}

TEST(Lanes, AnErrorNamesItsTransfer) {
  Rig rig(1);
  Work* const work = rig.Submit({.count = 1, .sequence = 9});
  EXPECT_STREQ(work->WaitHost(5000).message(), "all-reduce of 4 B (sequence 9): broken");
  work->Release();
  EXPECT_EQ(rig.failure.reason().code(), StatusCode::kDevice);
}

TEST(Lanes, WhatIsNotDoneInTimeFailsAndNamesThePeer) {
  Rig rig(1);
  Work* const work = rig.Submit({.count = 2, .sequence = 9, .timeout_ms = 50});
  const Status status = work->WaitHost(5000);
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_EQ(status.rank(), 5);
  EXPECT_STREQ(status.message(),
               "all-reduce of 8 B (sequence 9) did not move for 50 ms: still waiting for rank 5");
  work->Release();
}

TEST(Lanes, WhatMovesIsNotLateNorWhatIsQueuedBehindIt) {
  Rig rig(1);
  std::vector<Work*> works = {rig.Submit({.count = 3, .sequence = 0, .timeout_ms = 200})};
  for (uint64_t i = 1; i < 20; ++i) {
    works.push_back(rig.Submit({.count = 4, .sequence = i, .timeout_ms = 200}));
  }
  for (Work* work : works) {
    const Status status = work->WaitHost(60000);
    EXPECT_TRUE(status.ok()) << status.message();
    work->Release();
  }
  EXPECT_EQ(rig.progress.bytes_moved(), 50u);
}

// The waiter does not run what may move for longer than it wants to wait.
TEST(Lanes, AWaitEndsInItsTimeAlthoughTheTransferMoves) {
  Rig rig(1);
  Work* const work = rig.Submit({.count = kMovesUntilEnough, .timeout_ms = 300});
  EXPECT_EQ(work->WaitHost(300).code(), StatusCode::kTimeout);
  EXPECT_EQ(work->state(), WorkState::kPending);
  rig.enough = true;
  EXPECT_TRUE(work->WaitHost(60000).ok());
  work->Release();
}

TEST(Lanes, WithoutOnesTransfersAreCopies) {
  Rig rig(0);
  const float from[] = {1, 2, 3};
  float to[3] = {};
  Work* const work = rig.Submit({.send = from, .recv = to, .count = 3});
  EXPECT_EQ(work->state(), WorkState::kDone);
  work->Release();
  EXPECT_EQ(to[2], 3);
  EXPECT_TRUE(rig.sequences.empty());
}

TEST(DeadlineWatcher, LooksWhenTheEarliestDeadlineHasPassed) {
  std::atomic<int> looks{0};
  const auto begin = Clock::now();
  std::atomic<int64_t> looked_ms{0};
  DeadlineWatcher watcher("watcher", [&](Clock::time_point now) {
    looked_ms = std::chrono::duration_cast<milliseconds>(now - begin).count();
    ++looks;
    return Clock::time_point::max();
  });
  watcher.Watch(DeadlineIn(60000));
  watcher.Watch(DeadlineIn(30));
  while (looks == 0) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_GE(looked_ms, 29);
  EXPECT_LT(looked_ms, 20000);
}

}  // namespace
}  // namespace engine::kit
