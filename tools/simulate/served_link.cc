#include "tools/simulate/served_link.h"

#include <algorithm>
#include <cmath>

namespace engine::simulate {
double ServedLinkBytes(const NetworkModel& model, uint64_t size_bytes, int32_t ranks) {
  if (ranks <= 1) return 0;
  const auto bytes = static_cast<double>(size_bytes);
  const double n = ranks;
  if (model.servers == 0) return bytes * (n - 1) / n;
  return bytes * std::max(1.0, n / model.servers);
}

ServedLink::ServedLink(const NetworkModel& model, int32_t ranks)
    : model_(model),
      ranks_(ranks),
      bytes_per_ns_(BytesPerNs(model)),
      burst_bytes_(static_cast<double>(model.burst_bytes) * model.goodput) {
  for (Way& way : ways_) way.tokens = burst_bytes_;
}

ServedLink::Way& ServedLink::WayOf(TransferKind kind) {
  return ways_[model_.servers > 0 && kind == TransferKind::kPull ? 1 : 0];
}

// A push begins with its first byte, a pull when the server has heard of it.
void ServedLink::Submit(uint32_t id, TransferKind kind, uint64_t size_bytes, int32_t priority,
                        int64_t now_ns) {
  const int64_t heard_in_ns = kind == TransferKind::kPull ? model_.latency_ns : 0;
  WayOf(kind).flows.push_back({.id = id,
                               .is_push = kind == TransferKind::kPush,
                               .priority = priority,
                               .number = submitted_++,
                               .from_ns = now_ns + heard_in_ns,
                               .bytes_left = ServedLinkBytes(model_, size_bytes, ranks_)});
}

std::vector<ServedLink::Flow>::iterator ServedLink::MostUrgent(Way& way, int64_t now_ns) {
  auto best = way.flows.end();
  for (auto it = way.flows.begin(); it != way.flows.end(); ++it) {
    if (it->from_ns > now_ns) continue;
    if (best == way.flows.end() || std::pair(-int64_t{it->priority}, it->number) <
                                       std::pair(-int64_t{best->priority}, best->number)) {
      best = it;
    }
  }
  return best;
}

void ServedLink::SendPart(Way& way, std::vector<Flow>::iterator flow, int64_t now_ns) {
  const auto largest = static_cast<double>(model_.link.message_bytes);
  const double part = largest > 0 ? std::min(flow->bytes_left, largest) : flow->bytes_left;
  const double idle_ns = static_cast<double>(now_ns - way.free_at_ns);
  way.tokens = std::min(burst_bytes_, way.tokens + idle_ns * bytes_per_ns_);
  const double at_once = std::min(way.tokens, part);
  way.tokens -= at_once;
  way.free_at_ns = now_ns + static_cast<int64_t>(std::llround((part - at_once) / bytes_per_ns_));
  flow->bytes_left -= part;
  if (flow->bytes_left > 0) return;
  // A push is over when its rank has heard from the server, a pull when the bytes are there.
  const int64_t messages = flow->is_push ? 2 : 1;
  arriving_.emplace_back(way.free_at_ns + messages * model_.latency_ns, flow->id);
  way.flows.erase(flow);
}

int64_t ServedLink::NextEvent() const {
  int64_t next = Network::kNever;
  for (const auto& [end_ns, id] : arriving_) next = std::min(next, end_ns);
  for (const Way& way : ways_) {
    for (const Flow& flow : way.flows) {
      next = std::min(next, std::max(way.free_at_ns, flow.from_ns));
    }
  }
  return next;
}

void ServedLink::AdvanceTo(int64_t now_ns, std::vector<uint32_t>* ended) {
  for (Way& way : ways_) {
    while (way.free_at_ns <= now_ns) {
      const auto flow = MostUrgent(way, now_ns);
      if (flow == way.flows.end()) break;
      SendPart(way, flow, now_ns);
    }
  }
  std::sort(arriving_.begin(), arriving_.end());
  auto end = arriving_.begin();
  while (end != arriving_.end() && end->first <= now_ns) ended->push_back((end++)->second);
  arriving_.erase(arriving_.begin(), end);
}

}  // namespace engine::simulate
