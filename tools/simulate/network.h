// What the network costs a rank: a formula for one transfer, and the link that all transfers share.
//
// All ranks are taken to be alike and to start a transfer at the same time, so one of them stands
// for all. A transfer is a series of rounds. A round first keeps the hosts busy, while the link is
// free for others, then sends its bytes; what arrives takes as long as what leaves, because the
// link carries both ways at once. docs/schedulers.md derives the numbers.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/communicator.h"
#include "engine/ext/link_cost.h"

namespace engine::simulate {

// How ranks move data among each other.
enum class Pattern : int32_t {
  kExchange = 0,  // every rank with every other, in messages of LinkCost
  kRing = 1,      // every rank with its neighbours, 1/N of the data at a time
};

struct NetworkModel {
  Pattern pattern = Pattern::kExchange;
  double bits_per_second = 1e9;    // of the link of each host, each way
  double goodput = 1448.0 / 1514;  // share of it that is payload: TCP over Ethernet, MTU 1500
  int64_t latency_ns = 50'000;     // of a round: from the last byte on the wire to the next round's
                                   // first, wake-ups included
  int64_t message_ns = 0;          // of a host's time for each message of a round
  int32_t ranks_per_host = 1;      // which divides the ranks, unless all of them share one
  double inner_bits_per_second = 100e9;  // from a rank to the others of its host: payload
  int64_t inner_latency_ns = 10'000;     // of a round inside of a host
  bool hier = false;  // transfers are stages inside of hosts and between them, each by `pattern`
  int64_t hier_part_bytes = 256 << 10;  // that a rank moves between hosts at once (hier.part_bytes)
  LinkCost link = {};                   // of the communicator
  int64_t header_bytes = 66;  // of each message, beyond `goodput` and `link`: one more set of those
                              // of Ethernet, IP and TCP
  double copy_bytes_per_second = 0;  // at which the host handles what it receives; 0: for nothing
  int64_t burst_bytes = 0;  // of a token bucket (tc-tbf(8)): so much passes at once after a pause
  double unfairness = 0;  // 0: transfers that send at the same time get equal shares; f: each round
                          // has a weight from 1/(1+f) to 1+f, drawn by its number, as TCP has it
  int32_t max_in_flight = 2;  // transfers that make progress at once, each of them the first of a
                              // queue; 0: all
  int32_t servers = 0;  // of their own, each with such a link; 0: inside of the ranks. Of kPush and
                        // kPull: see served_link.h
  bool collective = true;  // transfers wait for other ranks, so all must start them in one order
  int64_t ticket_ns = 100'000;  // from rank 0's start of a transfer to that of the others, in runs
                                // where rank 0 decides the order
};

// What one rank does for one transfer.
struct TransferCost {
  int64_t rounds = 0;     // 0: nothing at all, as with one rank
  double host_ns = 0;     // of each round, before its bytes
  double link_bytes = 0;  // of each round
};

// `size_bytes` as in TaskInfo: the whole payload, of which a reduce-scatter leaves 1/N on each
// rank.
TransferCost CostOf(const NetworkModel& model, TransferKind kind, uint64_t size_bytes,
                    int32_t ranks);

// What a link carries each way: payload.
double BytesPerNs(const NetworkModel& model);

// Nanoseconds that the payload of a transfer occupies the link, with nothing in its way: C.
double LinkNs(const NetworkModel& model, TransferKind kind, uint64_t size_bytes, int32_t ranks);

// The transfers under way, in simulated time. Those that send at the same time share the link.
// Times never decrease from call to call.
class Network {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  // `by_ticket`: rank 0 decides the order of transfers, and the others wait to be told.
  Network(const NetworkModel& model, int32_t ranks, bool by_ticket);

  // A transfer of task `id`. `now_ns` is at most NextEvent().
  void Submit(uint32_t id, TransferKind kind, uint64_t size_bytes, int64_t now_ns);

  // When something happens next, or kNever. Not every such moment ends a transfer.
  int64_t NextEvent() const;
  // Appends the tasks whose transfers end until `now_ns`, which is at most NextEvent().
  void AdvanceTo(int64_t now_ns, std::vector<uint32_t>* ended);

  size_t in_flight() const { return in_flight_; }

 private:
  struct Flow {
    uint32_t id = 0;
    TransferCost round;
    int64_t rounds_left = 0;
    int64_t may_start_ns = 0;
    bool sending = false;
    int64_t send_at_ns = 0;  // when the bytes of the round follow, unless `sending`
    double weight = 1;       // of its share of the link
    double bytes_left = 0;   // of the round, if `sending`; else about 0
  };
  using Lane = std::deque<Flow>;

  Lane& LaneOfNext();
  void BeginRound(Flow& flow);
  double SendingWeight() const;
  void Serve(int64_t until_ns);
  void SpendTokens();
  bool Step(std::vector<uint32_t>* ended);

  const NetworkModel model_;
  const int32_t ranks_;
  const bool by_ticket_;
  const double bytes_per_ns_;
  const double burst_bytes_;
  std::vector<Lane> lanes_;
  std::vector<uint32_t> empty_;  // transfers that cost nothing, not yet reported
  uint64_t submitted_ = 0, rounds_ = 0;
  size_t in_flight_ = 0;
  double tokens_ = 0;
  int64_t now_ns_ = 0;
};

}  // namespace engine::simulate
