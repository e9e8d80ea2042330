#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>

#include "app/launch/launch.h"

namespace engine::launch {
namespace {

constexpr int64_t kLongMs = 20000;

LaunchPlan Threads(int world_size) {
  LaunchPlan plan;
  plan.mode = LaunchPlan::Mode::kThreads;
  plan.info.world_size = world_size;
  return plan;
}

TEST(LaunchThreads, EveryRankRunsOnce) {
  std::mutex mutex;
  std::set<int> ranks;
  LaunchOutcome outcome = Launch(Threads(4), {}, [&](base::RankContext& context) {
    EXPECT_EQ(context.info.world_size, 4);
    EXPECT_EQ(context.info.local_rank, context.info.rank);
    EXPECT_EQ(context.info.local_world_size, 4);
    std::lock_guard lock(mutex);
    ranks.insert(context.info.rank);
    return Status();
  });
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3}));
}

TEST(LaunchThreads, AnErrorOfOneEndsAllAndIsReturned) {
  LaunchOutcome outcome = Launch(Threads(3), {}, [](base::RankContext& context) -> Status {
    if (context.info.rank == 2) return Status::Error(StatusCode::kStorage, "the disk is full");
    Status status = context.store.Get("never", kLongMs).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_EQ(status.rank(), 2);
    return status;
  });
  EXPECT_EQ(outcome.status.code(), StatusCode::kStorage);
  EXPECT_STREQ(outcome.status.message(), "the disk is full");
  EXPECT_EQ(outcome.status.rank(), 2);
  EXPECT_EQ(outcome.exit_code, 203);
  EXPECT_TRUE(outcome.report);
}

TEST(LaunchThreads, ARaisedAbortEndsAllBeforeItsBodyReturns) {
  std::atomic<int> ended{0};
  LaunchOutcome outcome = Launch(Threads(2), {}, [&](base::RankContext& context) -> Status {
    if (context.info.rank == 0) {
      context.abort.Raise(Status::Error(StatusCode::kTimeout, "no progress"));
      while (ended == 0) std::this_thread::yield();  // the other one leaves first
      return context.abort.reason();
    }
    Status status = context.store.Get("never", kLongMs).status();
    ++ended;
    return status;
  });
  EXPECT_EQ(outcome.status.code(), StatusCode::kTimeout);
  EXPECT_EQ(outcome.status.rank(), 0);
}

TEST(LaunchThreads, AnExceptionIsAnErrorOfItsRank) {
  LaunchOutcome outcome = Launch(Threads(2), {}, [](base::RankContext& context) -> Status {
    if (context.info.rank == 1) throw std::runtime_error("surprise");
    return context.store.Get("never", kLongMs).status();
  });
  EXPECT_EQ(outcome.status.code(), StatusCode::kInternal);
  EXPECT_EQ(outcome.status.rank(), 1);
  EXPECT_THAT(outcome.status.message(), testing::HasSubstr("surprise"));
  EXPECT_EQ(outcome.exit_code, 70);
}

TEST(LaunchThreads, ASignalAsksEveryRankToStop) {
  LaunchOutcome outcome = Launch(Threads(2), {}, [](base::RankContext& context) -> Status {
    if (context.info.rank == 0) kill(getpid(), SIGTERM);
    while (context.stop_requested == 0) std::this_thread::yield();
    return Status::Error(StatusCode::kInterrupted, "stopped after step 1");
  });
  EXPECT_EQ(outcome.status.code(), StatusCode::kInterrupted);
  EXPECT_STREQ(outcome.status.message(), "stopped after step 1");
  EXPECT_EQ(outcome.exit_code, 143);
}

TEST(LaunchThreads, RestoresTheSignalMask) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  (void)Launch(Threads(1), {}, [](base::RankContext&) { return Status(); });
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal : {SIGINT, SIGTERM}) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal));
  }
}

}  // namespace
}  // namespace engine::launch
