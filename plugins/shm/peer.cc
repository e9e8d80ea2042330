#include "peer.h"

#include <exception>
#include <utility>

namespace engine::shm {

Peer::Peer(int rank, Socket connection, std::unique_ptr<Segment> segment, size_t chunk_bytes)
    : rank_(rank),
      connection_(std::move(connection)),
      segment_(std::move(segment)),
      control_(*reinterpret_cast<Control*>(segment_->data())),
      stages_(segment_->data() + kControlBytes),
      chunk_bytes_(chunk_bytes) {}

Result<uint8_t*> Peer::Place(uint32_t arena, uint64_t offset, uint64_t size_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  // A notice is sent before the first transfer that needs it, so it has arrived by now.
  if (arenas_.find(arena) == arenas_.end()) ENGINE_RETURN_IF_ERROR(ReadNotices());
  const auto found = arenas_.find(arena);
  // The death of a peer may reset the connection before its last notice is read.
  if (found == arenas_.end() && gone()) {
    return Status::Error(StatusCode::kPeerLost, "rank %d died", rank_).WithRank(rank_);
  }
  if (found == arenas_.end() || offset > found->second->size() ||
      size_bytes > found->second->size() - offset) {
    return Status::Error(StatusCode::kInternal, "rank %d has no %llu bytes in its arena %u", rank_,
                         static_cast<unsigned long long>(size_bytes), arena)
        .WithRank(rank_);
  }
  return found->second->data() + offset;
}

// mutex_ is held. Notices come in the order in which the peer sent them, and an arena that cannot be
// announced is not given out there: who has read all that are there knows every arena that an
// opening of the peer can name.
Status Peer::ReadNotices() noexcept {
  ArenaNotice notice;
  kit::UniqueFd descriptor;
  while (connection_.Receive(&notice, sizeof(notice), &descriptor) == Socket::Outcome::kGot) {
    if (notice.size_bytes == 0) {
      arenas_.erase(notice.arena);
      continue;
    }
    auto segment = Segment::Map(std::move(descriptor), notice.size_bytes);
    if (!segment.ok()) return segment.status().WithContext("an arena of rank %d", rank_);
    try {
      arenas_[notice.arena] = std::move(*segment);
    } catch (const std::exception&) {
      return Status::Error(StatusCode::kResourceExhausted, "no memory for an arena");
    }
  }
  return {};
}

}  // namespace engine::shm
