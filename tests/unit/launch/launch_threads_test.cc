#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "app/launch/launch.h"
#include "tests/support/expect_status.h"

namespace engine::launch {
namespace {

constexpr int64_t kLongMs = 20000;

LaunchOutcome RunThreads(int ranks, const std::function<Status(base::RankContext&)>& body) {
  return Launch({.mode = LaunchPlan::Mode::kThreads, .info = {.world_size = ranks}}, {}, body);
}

TEST(LaunchThreads, AnErrorOfOneEndsAllAndIsReturned) {
  LaunchOutcome outcome = RunThreads(3, [](base::RankContext& context) -> Status {
    if (context.info.rank == 2) return Status::Error(StatusCode::kStorage, "the disk is full");
    Status status = context.store.Get("never", kLongMs).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_EQ(status.rank(), 2);
    return status;
  });
  EXPECT_THAT(outcome.status, FailsWith(StatusCode::kStorage, "the disk is full"));
  EXPECT_EQ(outcome.status.rank(), 2);
  EXPECT_EQ(outcome.exit_code, 203);
}

TEST(LaunchThreads, ARaisedAbortEndsAllBeforeItsBodyReturns) {
  std::atomic<int> ended{0};
  LaunchOutcome outcome = RunThreads(2, [&](base::RankContext& context) -> Status {
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

TEST(LaunchThreads, RestoresTheSignalMask) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  (void)RunThreads(1, [](base::RankContext&) { return Status(); });
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal : {SIGINT, SIGTERM}) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal));
  }
}

}  // namespace
}  // namespace engine::launch
