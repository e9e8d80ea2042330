#include "tools/simulate/network.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"
#include "tests/unit/simulate/toy_step.h"

namespace engine::simulate {
namespace {

using test::PlainLink;
using ::testing::Pair;

// When each transfer ends.
std::vector<std::pair<uint32_t, int64_t>> Ends(Network& network) {
  std::vector<std::pair<uint32_t, int64_t>> ends;
  for (int64_t at = network.NextEvent(); at != Network::kNever; at = network.NextEvent()) {
    std::vector<uint32_t> ended;
    network.AdvanceTo(at, &ended);
    for (uint32_t id : ended) ends.emplace_back(id, at);
  }
  return ends;
}

void SubmitAll(Network& network, const std::vector<uint64_t>& sizes) {
  uint32_t id = 0;
  for (uint64_t size : sizes) network.Submit(id++, TransferKind::kAllReduce, size, 0);
}

NetworkModel Sharing(int32_t max_in_flight) {
  NetworkModel model = PlainLink();
  model.max_in_flight = max_in_flight;
  return model;
}

// Of transfers that two ranks submit at once.
std::vector<std::pair<uint32_t, int64_t>> EndsOf(const NetworkModel& model,
                                                 const std::vector<uint64_t>& sizes) {
  Network network(model, 2, false);
  SubmitAll(network, sizes);
  return Ends(network);
}

TEST(NetworkTest, OneAtATimeInOrder) {
  Network network(PlainLink(), 2, false);
  SubmitAll(network, {1000, 500});
  EXPECT_EQ(network.in_flight(), 2);
  EXPECT_THAT(Ends(network), ElementsAre(Pair(0, 1000), Pair(1, 1500)));
  EXPECT_EQ(network.in_flight(), 0);
}

TEST(NetworkTest, TransfersShareTheLink) {
  // 500 of each pass in the first 1000 ns, then the longer one has the link to itself.
  EXPECT_THAT(EndsOf(Sharing(2), {1000, 500}), ElementsAre(Pair(1, 1000), Pair(0, 1500)));
  // Until 600 the first two share; then the third, in the lane of the first, and the second.
  EXPECT_THAT(EndsOf(Sharing(2), {300, 1000, 100}),
              ElementsAre(Pair(0, 600), Pair(2, 800), Pair(1, 1400)));
  // Without a bound all share.
  EXPECT_THAT(EndsOf(Sharing(0), {100, 100, 100, 100}),
              ElementsAre(Pair(0, 400), Pair(1, 400), Pair(2, 400), Pair(3, 400)));
}

// Whoever gets more, the link carries the same, and the same again in the next run.
TEST(NetworkTest, UnfairSharesAddUpAndRepeat) {
  NetworkModel model = Sharing(4);
  model.unfairness = 1;
  const auto first = EndsOf(model, {1000, 1000, 1000, 1000});
  ASSERT_EQ(first.size(), 4);
  EXPECT_LT(first.front().second, 3990);
  EXPECT_GT(first.front().second, 1000);
  EXPECT_NEAR(static_cast<double>(first.back().second), 4000, 4);
  EXPECT_EQ(EndsOf(model, {1000, 1000, 1000, 1000}), first);
}

TEST(NetworkTest, LatencyOfOneIsHiddenBehindTheBytesOfAnother) {
  NetworkModel model = Sharing(2);
  model.latency_ns = 100;
  Network network(model, 2, false);
  SubmitAll(network, {1000});
  network.Submit(1, TransferKind::kAllReduce, 1000, 500);
  // The first alone from 100 to 600, then both.
  EXPECT_THAT(Ends(network), ElementsAre(Pair(0, 1600), Pair(1, 2100)));
}

TEST(NetworkTest, OneRankNeedsNoNetwork) {
  Network network(PlainLink(), 1, true);
  SubmitAll(network, {1000, 500});
  EXPECT_THAT(Ends(network), ElementsAre(Pair(0, 0), Pair(1, 0)));
}

TEST(NetworkTest, OthersWaitForTheirTicket) {
  NetworkModel model = PlainLink();
  model.ticket_ns = 70;
  Network network(model, 2, true);
  SubmitAll(network, {1000, 500});
  // The second ticket travels behind the bytes of the first transfer.
  EXPECT_THAT(Ends(network), ElementsAre(Pair(0, 1070), Pair(1, 1570)));
}

TEST(NetworkTest, ATokenBucketForgivesPauses) {
  NetworkModel model = PlainLink();
  model.burst_bytes = 400;
  Network network(model, 2, false);
  SubmitAll(network, {1000});
  EXPECT_THAT(Ends(network), ElementsAre(Pair(0, 600)));
  network.Submit(1, TransferKind::kAllReduce, 1000, 700);  // 100 ns: 100 tokens
  EXPECT_THAT(Ends(network), ElementsAre(Pair(1, 1600)));
  network.Submit(2, TransferKind::kAllReduce, 1000, 10'000);  // never more than the bucket
  EXPECT_THAT(Ends(network), ElementsAre(Pair(2, 10'600)));
}

TEST(TransferCostTest, RingIsTheTextbookFormula) {
  NetworkModel model = PlainLink();
  model.pattern = Pattern::kRing;
  model.latency_ns = 10;
  const TransferCost cost = CostOf(model, TransferKind::kAllReduce, 4000, 4);
  EXPECT_EQ(cost.rounds, 6);  // 2 (n-1)
  EXPECT_DOUBLE_EQ(cost.host_ns, 10);
  EXPECT_DOUBLE_EQ(cost.link_bytes, 1000);
  EXPECT_DOUBLE_EQ(LinkNs(model, TransferKind::kAllReduce, 4000, 4), 6000);
  EXPECT_DOUBLE_EQ(LinkNs(model, TransferKind::kReduceScatter, 4000, 4), 3000);
  EXPECT_DOUBLE_EQ(LinkNs(model, TransferKind::kAllGather, 4000, 4), 3000);
}

TEST(TransferCostTest, ExchangeSendsWhatTheCommunicatorSaysItSends) {
  NetworkModel model = PlainLink();
  model.link = {.message_bytes = 192 << 10, .exchange_up_to_bytes = 16 << 10, .header_bytes = 1};
  model.latency_ns = 10;
  model.message_ns = 1;
  model.header_bytes = 1;
  // Two ranks: the whole buffer in parts.
  TransferCost cost = CostOf(model, TransferKind::kAllReduce, 400 << 10, 2);
  EXPECT_EQ(cost.rounds, 3);
  EXPECT_DOUBLE_EQ(cost.host_ns, 11);
  EXPECT_DOUBLE_EQ(cost.link_bytes * 3, (400 << 10) + 3 * 2);
  // Four ranks and few bytes: everything to everyone.
  cost = CostOf(model, TransferKind::kAllReduce, 80, 4);
  EXPECT_EQ(cost.rounds, 1);
  EXPECT_DOUBLE_EQ(cost.host_ns, 13);
  EXPECT_DOUBLE_EQ(cost.link_bytes, 3 * 80 + 3 * 2);
  // Four ranks and many bytes: slices.
  cost = CostOf(model, TransferKind::kAllReduce, 400 << 10, 4);
  EXPECT_EQ(cost.rounds, 2);
  EXPECT_DOUBLE_EQ(cost.link_bytes, 3 * (100 << 10) + 3 * 2);
  EXPECT_DOUBLE_EQ(LinkNs(model, TransferKind::kAllReduce, 400 << 10, 4), 6 * (100 << 10));
  // One that says nothing sends everything at once.
  model.link = {};
  EXPECT_EQ(CostOf(model, TransferKind::kAllReduce, 400 << 10, 2).rounds, 1);
}

// Two hosts of two ranks. What leaves a host, of S: by a ring 2 (N-1)/N, by an exchange from each of
// its ranks half of that for each of the two others; by stages of hier 2 (H-1)/H.
TEST(TransferCostTest, RanksOfAHostShareItsLink) {
  NetworkModel model = PlainLink();
  model.ranks_per_host = 2;
  const auto link_ns = [&](TransferKind kind) { return LinkNs(model, kind, 4000, 4); };
  EXPECT_DOUBLE_EQ(link_ns(TransferKind::kAllReduce), 8000);
  EXPECT_DOUBLE_EQ(link_ns(TransferKind::kAllGather), 4000);
  EXPECT_DOUBLE_EQ(link_ns(TransferKind::kBroadcast), 8000);
  model.pattern = Pattern::kRing;
  EXPECT_DOUBLE_EQ(link_ns(TransferKind::kAllReduce), 6000);
  EXPECT_DOUBLE_EQ(link_ns(TransferKind::kBroadcast), 4000);
  model.hier = true;
  for (const Pattern pattern : {Pattern::kRing, Pattern::kExchange}) {
    model.pattern = pattern;
    EXPECT_DOUBLE_EQ(link_ns(TransferKind::kAllReduce), 4000);
    EXPECT_DOUBLE_EQ(link_ns(TransferKind::kReduceScatter), 2000);
    EXPECT_DOUBLE_EQ(link_ns(TransferKind::kAllGather), 2000);
    EXPECT_DOUBLE_EQ(link_ns(TransferKind::kBroadcast), 4000);
    EXPECT_DOUBLE_EQ(link_ns(TransferKind::kBarrier), 0);
  }
}

TEST(TransferCostTest, StagesInsideComeFirst) {
  NetworkModel model = PlainLink();
  model.ranks_per_host = 2;
  model.hier = true;
  model.latency_ns = 100;
  model.inner_latency_ns = 10;
  model.inner_bits_per_second = 32e9;  // 4 bytes/ns
  const auto cost = [&](TransferKind kind) { return CostOf(model, kind, 4000, 4); };
  // Reduce-scatter and all-gather of 2000 bytes for the other rank each.
  EXPECT_DOUBLE_EQ(cost(TransferKind::kAllReduce).host_ns, 2 * (10 + 500) + 100);
  EXPECT_DOUBLE_EQ(cost(TransferKind::kAllGather).host_ns, 10 + 500 + 100);
  EXPECT_DOUBLE_EQ(cost(TransferKind::kBarrier).host_ns, 2 * 10 + 100);
  // In four chunks the stages inside of the first are all that is not behind the link.
  model.hier_part_bytes = 500;
  EXPECT_DOUBLE_EQ(cost(TransferKind::kAllReduce).host_ns, 2 * 10 + 250 + 100);
  EXPECT_DOUBLE_EQ(cost(TransferKind::kAllReduce).link_bytes, 4000);
  // Inside it is slower: 2000 ns for a chunk, of which the last 1000 more between hosts.
  model.inner_bits_per_second = 4e9;
  EXPECT_DOUBLE_EQ(cost(TransferKind::kAllReduce).host_ns, 2 * 10 + 2000 + 100);
  EXPECT_DOUBLE_EQ(cost(TransferKind::kAllReduce).link_bytes, 3 * 2000 + 1000);
  // On one host there is nothing between.
  model.ranks_per_host = 4;
  EXPECT_DOUBLE_EQ(cost(TransferKind::kAllGather).host_ns, 10);
  EXPECT_DOUBLE_EQ(cost(TransferKind::kAllGather).link_bytes, 2 * 3000);
}

TEST(TransferCostTest, HostsTakeTheirTimeForBytes) {
  NetworkModel model = PlainLink();
  model.copy_bytes_per_second = 1e9;
  EXPECT_DOUBLE_EQ(CostOf(model, TransferKind::kAllReduce, 1000, 2).host_ns, 1000);
}

// A ring of 4096 ranks has 8190 rounds; simulating each would take as long as the real thing.
TEST(TransferCostTest, ManyRoundsAreTakenTogether) {
  NetworkModel model = PlainLink();
  model.pattern = Pattern::kRing;
  model.latency_ns = 10;
  const TransferCost cost = CostOf(model, TransferKind::kAllReduce, 4096000, 4096);
  EXPECT_LE(cost.rounds, 64);
  const auto rounds = static_cast<double>(cost.rounds);
  EXPECT_DOUBLE_EQ(cost.host_ns * rounds, 8190 * 10);
  EXPECT_NEAR(cost.link_bytes * rounds, 8190 * 1000.0, 1e-3);
}

}  // namespace
}  // namespace engine::simulate
