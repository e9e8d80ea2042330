#include "session.h"

#include <gtest/gtest.h>

namespace engine::zmq_ps {
namespace {

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
