#include "kit/failure.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/memory_host.h"

namespace engine::kit {
namespace {

TEST(Failure, TheFirstReasonStaysAndStopsOnce) {
  int stops = 0;
  Failure failure([&](const Status&, bool by_caller) { stops += by_caller ? 100 : 1; });
  EXPECT_FALSE(failure.raised());
  EXPECT_TRUE(failure.reason().ok());
  const Status first = failure.Fail(Status::Error(StatusCode::kDevice, "first"));
  EXPECT_STREQ(first.message(), "first");
  failure.Abort(Status::Error(StatusCode::kAborted, "second"));
  EXPECT_STREQ(failure.Fail(Status::Error(StatusCode::kInternal, "third")).message(), "first");
  EXPECT_STREQ(failure.reason().message(), "first");
  EXPECT_FALSE(failure.by_caller());
  EXPECT_EQ(stops, 1);
}

TEST(Failure, ALostPeerIsAskedForTheCause) {
  const auto hosts = test::MakeMemoryHosts(3);
  Failure first(*hosts[1], "0", {}), second(*hosts[2], "0", {}), elsewhere(*hosts[0], "1", {});
  (void)first.Fail(Status::Error(StatusCode::kTimeout, "rank 0: late").WithRank(0));
  const Status lost = Status::Error(StatusCode::kPeerLost, "rank 1 is gone").WithRank(1);
  const Status cause = second.Fail(lost);
  EXPECT_EQ(cause.code(), StatusCode::kTimeout);
  EXPECT_EQ(cause.rank(), 0);
  EXPECT_STREQ(cause.message(), "rank 1 gave up: rank 0: late");
  // Another communicator of the run has causes of its own.
  EXPECT_STREQ(elsewhere.Fail(lost).message(), "rank 1 is gone");
}

TEST(Failure, WhoHasLostARankDoesNotLeaveByItself) {
  Failure failure;
  failure.Abort(Status::Error(StatusCode::kPeerLost, "rank 0 died").WithRank(0));
  EXPECT_FALSE(failure.by_caller());
}

TEST(Failure, AnAbortOfTheUserIsNoCauseForOthers) {
  const auto hosts = test::MakeMemoryHosts(2);
  Failure first(*hosts[0], "0", {}), second(*hosts[1], "0", {});
  first.Abort(Status::Error(StatusCode::kInterrupted, "the user stopped"));
  EXPECT_TRUE(first.by_caller());
  const Status lost = Status::Error(StatusCode::kPeerLost, "rank 0 is gone").WithRank(0);
  EXPECT_STREQ(second.Fail(lost).message(), "rank 0 is gone");
}

// A store that is out of reach keeps nobody waiting but the thread that publishes.
TEST(Failure, WhatIsPendingEndsBeforeTheCauseIsPublished) {
  const auto hosts = test::MakeMemoryHosts(2);
  uint32_t published = 1;
  Failure failure(*hosts[0], "0", [&](const Status&, bool) {
    EXPECT_TRUE(hosts[1]->StoreHas("0/cause/0", &published).ok());
  });
  (void)failure.Fail(Status::Error(StatusCode::kDevice, "broken"));
  EXPECT_FALSE(published);
  EXPECT_TRUE(hosts[1]->StoreHas("0/cause/0", &published).ok());
  EXPECT_TRUE(published);
}

// So a rank that sees the end of a connection first waits for the cause.
TEST(Failure, ACauseThatComesALittleLaterIsFound) {
  const auto hosts = test::MakeMemoryHosts(2);
  Failure first(*hosts[0], "0", {}), second(*hosts[1], "0", {});
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    (void)first.Fail(Status::Error(StatusCode::kDevice, "broken"));
  });
  const Status lost = Status::Error(StatusCode::kPeerLost, "rank 0 is gone").WithRank(0);
  EXPECT_STREQ(second.Fail(lost).message(), "rank 0 gave up: broken");
  late.join();
}

TEST(Failure, TextThatIsNoCauseChangesNothing) {
  const Status lost = Status::Error(StatusCode::kPeerLost, "lost").WithRank(4);
  for (const char* text : {"", "4", "x y z"}) {
    EXPECT_STREQ(ParseCause(4, text, lost).message(), "lost") << text;
  }
  const Status back =
      ParseCause(4, CauseText(Status::Error(StatusCode::kDevice, "7 apples").WithRank(2)), lost);
  EXPECT_EQ(back.code(), StatusCode::kDevice);
  EXPECT_EQ(back.rank(), 2);
  EXPECT_STREQ(back.message(), "rank 4 gave up: 7 apples");
}

}  // namespace
}  // namespace engine::kit
