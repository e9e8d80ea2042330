#include <gtest/gtest.h>

#include "request_window.h"
#include "send_queue.h"

namespace engine::zmq_ps {
namespace {

TEST(SendQueue, UrgentFirstAndInOrderAmongEquals) {
  SendQueue<int> queue;
  for (const int item : {10, 30, 20, 11, 31, 21}) queue.Push(item / 10, item);
  std::vector<int> order;
  for (; !queue.empty(); queue.Pop()) order.push_back(queue.top());
  EXPECT_EQ(order, (std::vector<int>{30, 31, 20, 21, 10, 11}));
}

TEST(RequestWindow, SeesEachNumberOnceInAnyOrder) {
  using Verdict = RequestWindow::Verdict;
  RequestWindow window;
  for (const uint64_t request : {2, 1, 5, 4, 3, 7}) {
    EXPECT_EQ(window.Check(request), Verdict::kNew) << request;
    window.Mark(request);
    EXPECT_EQ(window.Check(request), Verdict::kSeen) << request;
  }
  EXPECT_EQ(window.Check(6), Verdict::kNew);
  EXPECT_EQ(window.Check(8), Verdict::kNew);
  EXPECT_EQ(window.Check(5 + RequestWindow::kWidth), Verdict::kNew);
  EXPECT_EQ(window.Check(6 + RequestWindow::kWidth), Verdict::kTooFar);
}

}  // namespace
}  // namespace engine::zmq_ps
