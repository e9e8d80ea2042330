// What goes first, how much ahead of time, and what was seen already.
#include "flow.h"

#include <gtest/gtest.h>

#include "session.h"

namespace engine::zmq_ps {
namespace {

using std::chrono::microseconds;

TEST(SendQueue, UrgentFirstAndInOrderAmongEquals) {
  SendQueue<int> queue;
  for (const int item : {10, 30, 20, 11, 31, 21}) queue.Push(item / 10, item);
  std::vector<int> order;
  for (; !queue.empty(); queue.Pop()) order.push_back(queue.top());
  EXPECT_EQ(order, (std::vector<int>{30, 31, 20, 21, 10, 11}));
}

TEST(Session, SeesEachRequestOnceInAnyOrder) {
  using Seen = Session::Seen;
  Session session(0, 1, {}, std::make_shared<WakeUp>());
  for (const uint64_t request : {2, 1, 5, 4, 3, 7}) {
    EXPECT_EQ(session.Check(request), Seen::kNew) << request;
    ASSERT_NE(session.Open({.request = request}), nullptr);
    EXPECT_EQ(session.Check(request), Seen::kRepeated) << request;
  }
  EXPECT_EQ(session.Check(6), Seen::kNew);
  EXPECT_EQ(session.Check(8), Seen::kNew);
  EXPECT_EQ(session.Check(uint64_t{1} << 40), Seen::kTooFar);
  // An answer that was acknowledged does not come again, and neither does its request.
  session.Answer(2, {}, {});
  session.Acknowledge(::zmq::message_t(std::string("\2\0\0\0\0\0\0\0", 8)));
  EXPECT_EQ(session.Find(2), nullptr);
  EXPECT_EQ(session.Check(2), Seen::kRepeated);
}

constexpr FlowSettings kFlow{.slice_bytes = 1 << 19, .buffer_bytes = 1 << 20};

// A link that takes a message every `per_message`, with as much to send as it takes.
int AheadOn(microseconds per_message, int messages, SendAhead* ahead, Clock::time_point* now) {
  for (int i = 0; i < messages; ++i) {
    ahead->Full(*now);
    *now += per_message;
    ahead->Sent(kFlow.slice_bytes);
  }
  return ahead->messages();
}

TEST(SendAhead, IsTwoMillisecondsOfTheLinkWithinItsBounds) {
  for (const auto& [per_message, expected] : {std::pair{microseconds(100), 8},
                                              {microseconds(240), 8},
                                              {microseconds(390), 5},
                                              {microseconds(990), 2},
                                              {microseconds(11000), 2}}) {
    SendAhead ahead(kFlow);
    Clock::time_point now{};
    EXPECT_EQ(AheadOn(per_message, 20, &ahead, &now), expected) << per_message.count();
  }
}

TEST(SendAhead, DoesNotTakeTheMemoryOfTheKernelForAFastLink) {
  SendAhead ahead(kFlow);
  Clock::time_point now{};
  // At once as far as the kernels' memory goes, and slowly from then on.
  EXPECT_EQ(AheadOn(microseconds(50), 4, &ahead, &now), SendAhead::kLeast);
  EXPECT_EQ(AheadOn(microseconds(11000), 20, &ahead, &now), SendAhead::kLeast);
}

TEST(SendAhead, FollowsALinkThatBecomesSlowAndForgetsPauses) {
  SendAhead ahead(kFlow);
  Clock::time_point now{};
  EXPECT_EQ(AheadOn(microseconds(100), 20, &ahead, &now), SendAhead::kMost);
  ahead.Drained();
  now += std::chrono::seconds(1);  // in which nothing was to be sent
  EXPECT_EQ(AheadOn(microseconds(100), 20, &ahead, &now), SendAhead::kMost);
  EXPECT_EQ(AheadOn(microseconds(11000), 20, &ahead, &now), SendAhead::kLeast);
}

}  // namespace
}  // namespace engine::zmq_ps
