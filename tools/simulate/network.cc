#include "tools/simulate/network.h"

#include <algorithm>
#include <cmath>

#include "tools/simulate/served_link.h"

namespace engine::simulate {

double BytesPerNs(const NetworkModel& model) {
  return model.bits_per_second * model.goodput / 8 * 1e-9;
}

namespace {

// Rounds beyond these are simulated several at a time, with their sums.
constexpr int64_t kMostRounds = 64;

// Less is a rounding error.
constexpr double kNoBytes = 0.1;
constexpr double kNoNs = 1e-3;

// What a rank does for a transfer, before it is cut into rounds of equal size.
struct Traffic {
  double rounds = 0;
  double messages = 0;    // sent in each round
  double sent_bytes = 0;  // payload, of all rounds
  double load = 1;      // bytes on the busiest link for each of them, at the rate of a host's link
  double start_ns = 0;  // of the host, once
  int64_t latency_ns = 0;
};

// Among `ranks` that are all alike.
Traffic FlatTraffic(const NetworkModel& model, TransferKind kind, double bytes, double ranks) {
  const double peers = ranks - 1, slice = bytes / ranks;
  const bool ring = model.pattern == Pattern::kRing;
  const LinkCost& link = model.link;
  const auto messages_of = [&link](double part) {
    if (link.message_bytes == 0) return 1.0;
    return std::max(1.0, std::ceil(part / static_cast<double>(link.message_bytes)));
  };
  switch (kind) {
    case TransferKind::kAllReduce:
      if (ring) return {2 * peers, 1, 2 * peers * slice};
      if (ranks <= 2 || bytes <= static_cast<double>(link.exchange_up_to_bytes)) {
        return {messages_of(bytes), peers, peers * bytes};
      }
      return {2 * messages_of(slice), peers, 2 * peers * slice};
    case TransferKind::kReduceScatter:
    case TransferKind::kAllGather:
      return {ring ? peers : messages_of(slice), ring ? 1 : peers, peers * slice};
    case TransferKind::kBroadcast:  // in a ring passed on in slices; else of its root
      return ring ? Traffic{2 * peers, 1, bytes}
                  : Traffic{messages_of(bytes), peers, peers * bytes};
    default:  // barriers; a push and a pull have a network of their own
      return {ring ? 2 * peers : 1, ring ? 1 : peers, 0};
  }
}

double InnerBytesPerNs(const NetworkModel& model) {
  return model.inner_bits_per_second / 8 * 1e-9;
}

// A ring leaves a host once, from the last of its ranks. Of what a rank sends to all others the
// part for other hosts shares the link with that of the other ranks of its host.
Traffic TrafficOverHosts(const NetworkModel& model, TransferKind kind, double bytes, double ranks) {
  Traffic traffic = FlatTraffic(model, kind, bytes, ranks);
  const double local = std::min<double>(model.ranks_per_host, ranks);
  double inside = local > 1, between = ranks > local;
  if (model.pattern == Pattern::kExchange) {
    inside = (local - 1) / (ranks - 1);
    between = (1 - inside) * (kind == TransferKind::kBroadcast ? 1 : local);
  }
  traffic.load = std::max(between, inside * BytesPerNs(model) / InnerBytesPerNs(model));
  traffic.latency_ns = ranks > local ? model.latency_ns : model.inner_latency_ns;
  return traffic;
}

// The stages of plugins/hier/pipeline.h. While a chunk is between the hosts others are inside: what
// counts is the slower of the two, after the stages inside of one chunk.
Traffic HierTraffic(const NetworkModel& model, TransferKind kind, double bytes, double ranks) {
  const double local = model.ranks_per_host, hosts = ranks / local;
  const bool whole = kind == TransferKind::kBroadcast;  // by one rank of each host
  const double part = whole ? bytes : bytes / local;    // between hosts, of a rank
  Traffic traffic = FlatTraffic(model, kind, part, hosts);
  traffic.latency_ns = model.latency_ns;
  traffic.load = whole ? 1 : local;
  const double chunks = std::max(1.0, part / static_cast<double>(model.hier_part_bytes));
  // Half of an all-reduce is before that between the hosts, half behind it; so is all of a barrier.
  const bool twice = kind == TransferKind::kAllReduce || kind == TransferKind::kBarrier;
  const TransferKind one = kind == TransferKind::kAllReduce ? TransferKind::kAllGather : kind;
  const double stages = twice ? 2 : 1;
  const Traffic inside = FlatTraffic(model, one, bytes / chunks, local);
  const double inside_ns = stages * inside.sent_bytes / InnerBytesPerNs(model);
  traffic.start_ns =
      stages * inside.rounds * static_cast<double>(model.inner_latency_ns) + inside_ns;
  if (traffic.sent_bytes == 0) return traffic;
  const double between = traffic.load * traffic.sent_bytes / chunks;  // on the link, of a chunk
  const double slower = std::max(between, inside_ns * BytesPerNs(model));
  traffic.load = (between + (chunks - 1) * slower) / traffic.sent_bytes;
  return traffic;
}

Traffic TrafficOf(const NetworkModel& model, TransferKind kind, uint64_t size_bytes,
                  int32_t ranks) {
  if (ranks <= 1) return {};
  const bool hier = model.hier && ranks > model.ranks_per_host;
  return (hier ? HierTraffic : TrafficOverHosts)(model, kind, static_cast<double>(size_bytes),
                                                 ranks);
}

// The same for the same number: from 1/(1+f) to 1+f, as often below 1 as above. By the finaliser of
// splitmix64 (Steele, Lea, Flood 2014).
double WeightOf(uint64_t number, double unfairness) {
  uint64_t x = number * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  const double uniform = static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
  return std::pow(1 + unfairness, 2 * uniform - 1);
}

}  // namespace

TransferCost CostOf(const NetworkModel& model, TransferKind kind, uint64_t size_bytes,
                    int32_t ranks) {
  const Traffic traffic = TrafficOf(model, kind, size_bytes, ranks);
  if (traffic.rounds == 0) return {};
  double host_ns = traffic.start_ns +
                   traffic.rounds * (static_cast<double>(traffic.latency_ns) +
                                     traffic.messages * static_cast<double>(model.message_ns));
  if (model.copy_bytes_per_second > 0) {
    host_ns += traffic.sent_bytes / model.copy_bytes_per_second * 1e9;
  }
  const auto header_bytes =
      static_cast<double>(model.header_bytes) + static_cast<double>(model.link.header_bytes);
  const double link_bytes =
      traffic.load * (traffic.sent_bytes + traffic.rounds * traffic.messages * header_bytes);
  const auto rounds = std::min(static_cast<int64_t>(traffic.rounds), kMostRounds);
  const auto share = static_cast<double>(rounds);
  return {.rounds = rounds, .host_ns = host_ns / share, .link_bytes = link_bytes / share};
}

double LinkNs(const NetworkModel& model, TransferKind kind, uint64_t size_bytes, int32_t ranks) {
  const bool served = kind == TransferKind::kPush || kind == TransferKind::kPull;
  if (served) return ServedLinkBytes(model, size_bytes, ranks) / BytesPerNs(model);
  const Traffic traffic = TrafficOf(model, kind, size_bytes, ranks);
  return traffic.load * traffic.sent_bytes / BytesPerNs(model);
}

Network::Network(const NetworkModel& model, int32_t ranks, bool by_ticket)
    : model_(model),
      ranks_(ranks),
      by_ticket_(by_ticket && ranks > 1),
      bytes_per_ns_(BytesPerNs(model)),
      burst_bytes_(static_cast<double>(model.burst_bytes) * model.goodput),
      lanes_(static_cast<size_t>(model.max_in_flight)),
      tokens_(burst_bytes_) {}

// In turn, as communicators with several lanes do; without a bound each transfer has a lane to itself.
Network::Lane& Network::LaneOfNext() {
  ++submitted_;
  if (model_.max_in_flight > 0) return lanes_[submitted_ % lanes_.size()];
  const auto free =
      std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.empty(); });
  return free != lanes_.end() ? *free : lanes_.emplace_back();
}

void Network::Submit(uint32_t id, TransferKind kind, uint64_t size_bytes, int64_t now_ns) {
  Serve(now_ns);
  ++in_flight_;
  const TransferCost cost = CostOf(model_, kind, size_bytes, ranks_);
  if (cost.rounds == 0) {
    empty_.push_back(id);
    return;
  }
  Lane& lane = LaneOfNext();
  lane.push_back({.id = id,
                  .round = cost,
                  .rounds_left = cost.rounds,
                  .may_start_ns = now_ns + (by_ticket_ ? model_.ticket_ns : 0)});
  if (lane.size() == 1) BeginRound(lane.front());
}

void Network::BeginRound(Flow& flow) {
  flow.sending = false;
  flow.weight = WeightOf(++rounds_, model_.unfairness);
  flow.send_at_ns =
      std::max(now_ns_, flow.may_start_ns) + static_cast<int64_t>(std::llround(flow.round.host_ns));
}

double Network::SendingWeight() const {
  double sum = 0;
  for (const Lane& lane : lanes_) {
    if (!lane.empty() && lane.front().sending) sum += lane.front().weight;
  }
  return sum;
}

int64_t Network::NextEvent() const {
  if (!empty_.empty()) return now_ns_;
  const double sending = SendingWeight();
  int64_t next = kNever;
  for (const Lane& lane : lanes_) {
    if (lane.empty()) continue;
    const Flow& flow = lane.front();
    const double wait_ns = flow.bytes_left * (sending / flow.weight) / bytes_per_ns_;
    const int64_t at =
        flow.sending ? now_ns_ + static_cast<int64_t>(std::ceil(std::max(0.0, wait_ns - kNoNs)))
                     : flow.send_at_ns;
    next = std::min(next, at);
  }
  return next;
}

void Network::AdvanceTo(int64_t now_ns, std::vector<uint32_t>* ended) {
  Serve(now_ns);
  const size_t before = ended->size();
  ended->insert(ended->end(), empty_.begin(), empty_.end());
  empty_.clear();
  while (Step(ended)) continue;
  in_flight_ -= ended->size() - before;
}

void Network::Serve(int64_t until_ns) {
  const double bytes = static_cast<double>(until_ns - now_ns_) * bytes_per_ns_;
  now_ns_ = until_ns;
  const double sending = SendingWeight();
  if (sending == 0) {
    tokens_ = std::min(burst_bytes_, tokens_ + bytes);
    return;
  }
  for (Lane& lane : lanes_) {
    if (lane.empty() || !lane.front().sending) continue;
    lane.front().bytes_left -= bytes * (lane.front().weight / sending);
  }
}

// What the bucket holds passes at once, in equal shares.
void Network::SpendTokens() {
  while (tokens_ > kNoBytes) {
    size_t hungry = 0;
    double least = tokens_;
    for (const Lane& lane : lanes_) {
      if (lane.empty() || !lane.front().sending || lane.front().bytes_left <= kNoBytes) continue;
      ++hungry;
      least = std::min(least, lane.front().bytes_left);
    }
    if (hungry == 0) return;
    const double share = std::min(least, tokens_ / static_cast<double>(hungry));
    for (Lane& lane : lanes_) {
      if (lane.empty() || !lane.front().sending || lane.front().bytes_left <= kNoBytes) continue;
      lane.front().bytes_left -= share;
    }
    tokens_ -= share * static_cast<double>(hungry);
  }
}

// Whatever is due at this moment, once; whether anything was.
bool Network::Step(std::vector<uint32_t>* ended) {
  bool any = false;
  for (Lane& lane : lanes_) {
    if (lane.empty()) continue;
    Flow& flow = lane.front();
    if (!flow.sending && flow.send_at_ns <= now_ns_) {
      flow.sending = true;
      flow.bytes_left += flow.round.link_bytes;  // times are whole, shares of bytes are not
      any = true;
    }
  }
  SpendTokens();
  for (Lane& lane : lanes_) {
    if (lane.empty() || !lane.front().sending || lane.front().bytes_left > kNoBytes) continue;
    any = true;
    Flow& flow = lane.front();
    if (--flow.rounds_left > 0) {
      BeginRound(flow);
      continue;
    }
    ended->push_back(flow.id);
    lane.pop_front();
    if (!lane.empty()) BeginRound(lane.front());
  }
  return any;
}

}  // namespace engine::simulate
