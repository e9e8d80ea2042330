// What goes first, and what was seen already.
#include "flow.h"

#include <gtest/gtest.h>

#include "session.h"

namespace engine::zmq_ps {
namespace {

TEST(SendQueue, UrgentFirstAndInOrderAmongEquals) {
  SendQueue<int> queue;
  for (const int item : {10, 30, 20, 11, 31, 21}) queue.Push(item / 10, item);
  std::vector<int> order;
  for (; !queue.empty(); queue.Pop()) order.push_back(queue.top());
  EXPECT_EQ(order, (std::vector<int>{30, 31, 20, 21, 10, 11}));
}

TEST(Session, SeesEachRequestOnceInAnyOrder) {
  Session session(0, 1, {}, std::make_shared<WakeUp>());
  for (const uint64_t request : {2, 1, 5, 4, 3, 7}) {
    EXPECT_TRUE(session.IsNew(request)) << request;
    session.Open({.request = request});
    EXPECT_FALSE(session.IsNew(request)) << request;
  }
  EXPECT_TRUE(session.IsNew(6));
  EXPECT_TRUE(session.IsNew(8));
  // An answer that was acknowledged does not come again, and neither does its request.
  session.Answer(2, {}, {});
  session.Acknowledge(::zmq::message_t(std::string("\2\0\0\0\0\0\0\0", 8)));
  EXPECT_EQ(session.Find(2), nullptr);
  EXPECT_FALSE(session.IsNew(2));
}

}  // namespace
}  // namespace engine::zmq_ps
