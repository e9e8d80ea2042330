#include "tools/simulate/served_link.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"
#include "tests/unit/simulate/toy_step.h"

namespace engine::simulate {
namespace {

using test::kMs;
using test::PlainLink;
using ::testing::Pair;

// Ends of all transfers, in milliseconds, with their tasks.
std::vector<std::pair<double, uint32_t>> Drain(ServedLink& link) {
  std::vector<std::pair<double, uint32_t>> ends;
  while (link.NextEvent() != Network::kNever) {
    const int64_t now_ns = link.NextEvent();
    std::vector<uint32_t> ended;
    link.AdvanceTo(now_ns, &ended);
    for (uint32_t id : ended) ends.emplace_back(static_cast<double>(now_ns) / kMs, id);
  }
  return ends;
}

NetworkModel TwoServers() {
  NetworkModel model = PlainLink();
  model.servers = 2;
  model.link.message_bytes = 1 << 19;
  return model;
}

// What is being sent is not interrupted, but it is sent in messages of half a MiB.
TEST(ServedLinkTest, SendsTheMostUrgentFirst) {
  ServedLink link(TwoServers(), 2);
  link.Submit(0, TransferKind::kPush, 2 << 20, -5, 0);
  std::vector<uint32_t> ended;
  link.AdvanceTo(0, &ended);
  link.Submit(1, TransferKind::kPush, 1 << 19, -7, 0);
  link.Submit(2, TransferKind::kPush, 1 << 19, -1, 0);
  const double part_ms = (1 << 19) / 1e6;
  EXPECT_THAT(Drain(link), ElementsAre(Pair(testing::DoubleEq(2 * part_ms), 2),
                                       Pair(testing::DoubleEq(5 * part_ms), 0),
                                       Pair(testing::DoubleEq(6 * part_ms), 1)));
}

TEST(ServedLinkTest, KeepsTheOrderOfEqualPriorities) {
  ServedLink link(TwoServers(), 2);
  for (uint32_t id : {4, 3, 9}) link.Submit(id, TransferKind::kPull, 100 * 1000, 0, 0);
  EXPECT_THAT(Drain(link), ElementsAre(Pair(0.1, 4), Pair(0.2, 3), Pair(0.3, 9)));
}

TEST(ServedLinkTest, LetsABurstPassAfterAPause) {
  NetworkModel model = TwoServers();
  model.burst_bytes = 100 * 1000;
  ServedLink link(model, 2);
  link.Submit(0, TransferKind::kPush, 250 * 1000, 0, 0);
  EXPECT_THAT(Drain(link), ElementsAre(Pair(0.15, 0)));
  link.Submit(1, TransferKind::kPush, 250 * 1000, 0, 190 * 1000);  // 40 us later
  std::vector<uint32_t> ended;
  link.AdvanceTo(190 * 1000, &ended);
  EXPECT_THAT(Drain(link), ElementsAre(Pair(0.19 + 0.21, 1)));
}

TEST(ServedLinkTest, BytesOfTheBusiestLink) {
  const auto bytes = [](int32_t servers, int32_t ranks) {
    NetworkModel model = PlainLink();
    model.servers = servers;
    return ServedLinkBytes(model, 1000, ranks);
  };
  EXPECT_EQ(bytes(2, 2), 1000);
  EXPECT_EQ(bytes(4, 2), 1000);
  EXPECT_EQ(bytes(1, 2), 2000);
  EXPECT_EQ(bytes(2, 6), 3000);
  EXPECT_EQ(bytes(0, 4), 750);
  EXPECT_EQ(bytes(2, 1), 0);
}

}  // namespace
}  // namespace engine::simulate
