#include <gtest/gtest.h>

#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "core/base/rank_context.h"

namespace engine::launch {
namespace {

Status Reason(const char* text) {
  return Status::Error(StatusCode::kAborted, "%s", text);
}

TEST(AbortSignal, TheFirstReasonStays) {
  base::AbortSignal abort;
  EXPECT_FALSE(abort.raised());
  EXPECT_TRUE(abort.reason().ok());
  abort.Raise(Reason("first"));
  abort.Raise(Reason("second"));
  EXPECT_TRUE(abort.raised());
  EXPECT_STREQ(abort.reason().message(), "first");
}

TEST(AbortSignal, CallsEachListenerOnceAndALateOneAtOnce) {
  base::AbortSignal abort;
  std::vector<std::string> calls;
  const auto listen = [&](const std::string& name) {
    return abort.Listen(
        [&calls, name](const Status& reason) { calls.push_back(name + " " + reason.message()); });
  };
  listen("a");
  const int forgotten = listen("forgotten");
  listen("b");
  abort.Forget(forgotten);
  abort.Raise(Reason("x"));
  abort.Raise(Reason("y"));
  listen("late");
  EXPECT_EQ(calls, (std::vector<std::string>{"a x", "b x", "late x"}));
}

TEST(AbortSignal, AListenerMayUseTheSignal) {
  base::AbortSignal abort;
  int token = 0, nested = 0;
  token = abort.Listen([&](const Status&) {
    EXPECT_TRUE(abort.raised());
    EXPECT_STREQ(abort.reason().message(), "x");
    abort.Raise(Reason("y"));
    abort.Forget(token);
    abort.Listen([&](const Status&) { ++nested; });
  });
  abort.Raise(Reason("x"));
  EXPECT_EQ(nested, 1);
}

TEST(AbortSignal, ForgetWaitsForARunningListener) {
  base::AbortSignal abort;
  std::latch running(1);
  std::atomic<bool> forgetting{false};
  bool ended = false;  // plain on purpose: Forget must order it (the thread sanitizer looks)
  int token = abort.Listen([&](const Status&) {
    running.count_down();
    while (!forgetting) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = true;
  });
  std::thread raiser([&] { abort.Raise(Reason("x")); });
  running.wait();
  forgetting = true;
  abort.Forget(token);
  EXPECT_TRUE(ended);
  raiser.join();
}

}  // namespace
}  // namespace engine::launch
