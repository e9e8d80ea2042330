// mutex_ is held while peers are told, so notices leave in the order in which arenas come and go,
// and that of an arena leaves before Allocate returns: no transfer can name it sooner. Only notices
// tell peers; the memory itself stays as long as one process maps it.
#include "arenas.h"

#include <exception>
#include <iterator>
#include <utility>

namespace engine::shm {

Status Arenas::Allocate(uint64_t size_bytes, void** out) noexcept {
  if (size_bytes == 0) {
    return Status::Error(StatusCode::kInvalidArgument, "0 bytes of shared memory");
  }
  try {
    ENGINE_ASSIGN_OR_RETURN(auto segment, Segment::Create(size_bytes, "engine-shm-arena"));
    uint8_t* const data = segment->data();
    const std::lock_guard lock(mutex_);
    Arena arena{++last_number_, std::move(segment)};
    ENGINE_RETURN_IF_ERROR(Announce(arena));
    arenas_.emplace(data, std::move(arena));
    *out = data;
    return {};
  } catch (const std::exception&) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory for an arena");
  }
}

// All peers hear of it or, as far as they have been told, that it is gone again. Numbers are not
// used twice, so nobody takes a later arena for it.
Status Arenas::Announce(const Arena& arena) noexcept {
  const ArenaNotice notice{.arena = arena.number, .size_bytes = arena.segment->size()};
  for (const auto& peer : peers_) {
    if (!peer || peer->Notify(notice, arena.segment->descriptor())) continue;
    for (const auto& other : peers_) {
      if (other) other->Notify({.arena = arena.number}, -1);
    }
    const Status reason =
        peer->gone() ? Status::Error(StatusCode::kPeerLost, "rank %d is gone", peer->rank())
                     : Status::Error(StatusCode::kResourceExhausted,
                                     "rank %d does not take notice of shared memory", peer->rank());
    return reason.WithRank(peer->rank());
  }
  return {};
}

// A peer unmaps it when it reads the notice, the next time that it meets a number it does not know.
void Arenas::Free(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = arenas_.find(static_cast<const uint8_t*>(data));
  if (found == arenas_.end()) return;
  for (const auto& peer : peers_) {
    if (peer) peer->Notify({.arena = found->second.number}, -1);
  }
  arenas_.erase(found);
}

Arenas::Found Arenas::Find(const void* data, uint64_t size_bytes) const noexcept {
  const auto* const begin = static_cast<const uint8_t*>(data);
  const std::lock_guard lock(mutex_);
  auto after = arenas_.upper_bound(begin);
  if (after == arenas_.begin()) return {};
  const auto& [base, arena] = *std::prev(after);
  const auto offset = static_cast<uint64_t>(begin - base);
  if (offset > arena.segment->size() || size_bytes > arena.segment->size() - offset) return {};
  return {arena.number, offset};
}

}  // namespace engine::shm
