#include "tools/simulate/network.h"

#include <algorithm>
#include <cmath>

#include "tools/simulate/served_link.h"

namespace engine::simulate {
namespace {

// Rounds beyond these are simulated several at a time, with their sums.
constexpr int64_t kMostRounds = 64;

// Less is a rounding error.
constexpr double kNoBytes = 0.1;
constexpr double kNoNs = 1e-3;

// A transfer before it is cut into rounds of equal size.
struct Traffic {
  double rounds = 0;
  double messages = 0;    // sent by a rank in each round
  double link_bytes = 0;  // payload, of all rounds
};

Traffic ExchangeTraffic(const LinkCost& link, TransferKind kind, double bytes, double ranks) {
  const double peers = ranks - 1, slice = bytes / ranks;
  const auto messages_of = [&link](double part) {
    if (link.message_bytes == 0) return 1.0;
    return std::max(1.0, std::ceil(part / static_cast<double>(link.message_bytes)));
  };
  switch (kind) {
    case TransferKind::kAllReduce:
      if (ranks <= 2 || bytes <= static_cast<double>(link.exchange_up_to_bytes)) {
        return {messages_of(bytes), peers, peers * bytes};
      }
      return {2 * messages_of(slice), peers, 2 * peers * slice};
    case TransferKind::kReduceScatter:
    case TransferKind::kAllGather:
      return {messages_of(slice), peers, peers * slice};
    case TransferKind::kBroadcast:  // of its root, which sends most
      return {messages_of(bytes), peers, peers * bytes};
    case TransferKind::kPush:  // has a network of its own
    case TransferKind::kPull:
    case TransferKind::kBarrier:
      break;
  }
  return {1, peers, 0};
}

Traffic RingTraffic(TransferKind kind, double bytes, double ranks) {
  const double peers = ranks - 1, slice = bytes / ranks;
  switch (kind) {
    case TransferKind::kAllReduce:
      return {2 * peers, 1, 2 * peers * slice};
    case TransferKind::kReduceScatter:
    case TransferKind::kAllGather:
      return {peers, 1, peers * slice};
    case TransferKind::kBroadcast:  // passed on in slices
      return {2 * peers, 1, bytes};
    case TransferKind::kPush:
    case TransferKind::kPull:
    case TransferKind::kBarrier:
      break;
  }
  return {2 * peers, 1, 0};
}

Traffic TrafficOf(const NetworkModel& model, TransferKind kind, uint64_t size_bytes,
                  int32_t ranks) {
  if (ranks <= 1) return {};
  const auto bytes = static_cast<double>(size_bytes);
  return model.pattern == Pattern::kRing ? RingTraffic(kind, bytes, ranks)
                                         : ExchangeTraffic(model.link, kind, bytes, ranks);
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

double BytesPerNs(const NetworkModel& model) {
  return model.bits_per_second * model.goodput / 8 * 1e-9;
}

TransferCost CostOf(const NetworkModel& model, TransferKind kind, uint64_t size_bytes,
                    int32_t ranks) {
  const Traffic traffic = TrafficOf(model, kind, size_bytes, ranks);
  if (traffic.rounds == 0) return {};
  double host_ns = traffic.rounds * (static_cast<double>(model.latency_ns) +
                                     traffic.messages * static_cast<double>(model.message_ns));
  if (model.copy_bytes_per_second > 0) {
    host_ns += traffic.link_bytes / model.copy_bytes_per_second * 1e9;
  }
  const auto header_bytes =
      static_cast<double>(model.header_bytes) + static_cast<double>(model.link.header_bytes);
  const double link_bytes = traffic.link_bytes + traffic.rounds * traffic.messages * header_bytes;
  const auto rounds = std::min(static_cast<int64_t>(traffic.rounds), kMostRounds);
  const auto share = static_cast<double>(rounds);
  return {.rounds = rounds, .host_ns = host_ns / share, .link_bytes = link_bytes / share};
}

double LinkNs(const NetworkModel& model, TransferKind kind, uint64_t size_bytes, int32_t ranks) {
  const bool served = kind == TransferKind::kPush || kind == TransferKind::kPull;
  const double bytes = served ? ServedLinkBytes(model, size_bytes, ranks)
                              : TrafficOf(model, kind, size_bytes, ranks).link_bytes;
  return bytes / BytesPerNs(model);
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
