#include "send_ahead.h"

#include <gtest/gtest.h>

namespace engine::zmq_ps {
namespace {

using std::chrono::microseconds;

constexpr uint64_t kMessage = 1 << 19, kKernel = 1 << 21;

// A link that takes a message every `per_message`, with as much to send as it takes.
int AheadOn(microseconds per_message, int messages, SendAhead* ahead, Clock::time_point* now) {
  for (int i = 0; i < messages; ++i) {
    ahead->Full(*now);
    *now += per_message;
    ahead->Sent(kMessage);
  }
  return ahead->messages();
}

TEST(SendAhead, IsTwoMillisecondsOfTheLinkWithinItsBounds) {
  for (const auto& [per_message, expected] : {std::pair{microseconds(100), 8},
                                              {microseconds(240), 8},
                                              {microseconds(390), 5},
                                              {microseconds(990), 2},
                                              {microseconds(11000), 2}}) {
    SendAhead ahead(kMessage, kKernel / 2);
    Clock::time_point now{};
    EXPECT_EQ(AheadOn(per_message, 20, &ahead, &now), expected) << per_message.count();
  }
}

TEST(SendAhead, DoesNotTakeTheMemoryOfTheKernelForAFastLink) {
  SendAhead ahead(kMessage, kKernel / 2);
  Clock::time_point now{};
  // At once as far as the kernels' memory goes, and slowly from then on.
  EXPECT_EQ(AheadOn(microseconds(50), kKernel / kMessage, &ahead, &now), SendAhead::kLeast);
  EXPECT_EQ(AheadOn(microseconds(11000), 20, &ahead, &now), SendAhead::kLeast);
}

TEST(SendAhead, FollowsALinkThatBecomesSlowAndForgetsPauses) {
  SendAhead ahead(kMessage, kKernel / 2);
  Clock::time_point now{};
  EXPECT_EQ(AheadOn(microseconds(100), 20, &ahead, &now), SendAhead::kMost);
  ahead.Drained();
  now += std::chrono::seconds(1);  // in which nothing was to be sent
  EXPECT_EQ(AheadOn(microseconds(100), 20, &ahead, &now), SendAhead::kMost);
  EXPECT_EQ(AheadOn(microseconds(11000), 20, &ahead, &now), SendAhead::kLeast);
}

}  // namespace
}  // namespace engine::zmq_ps
