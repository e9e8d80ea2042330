// The memory of this rank that peers may use in place.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/ext/shared_memory.h"
#include "peer.h"
#include "segment.h"

namespace engine::shm {

class Arenas final : public SharedMemoryBase {
 public:
  // `peers` are borrowed; null entries (this rank) are skipped.
  explicit Arenas(const std::vector<std::unique_ptr<Peer>>& peers) : peers_(peers) {}

  Status Allocate(uint64_t size_bytes, void** out) noexcept override;
  void Free(void* data) noexcept override;

  struct Found {
    uint32_t arena = 0;  // 0: not, or not whole, in an arena
    uint64_t offset = 0;
  };
  Found Find(const void* data, uint64_t size_bytes) const noexcept;  // [any-thread]

 private:
  struct Arena {
    uint32_t number = 0;
    std::unique_ptr<Segment> segment;
  };

  Status Announce(const Arena& arena) noexcept;

  const std::vector<std::unique_ptr<Peer>>& peers_;
  mutable std::mutex mutex_;
  std::map<const uint8_t*, Arena> arenas_;  // by address; these two guarded by mutex_
  uint32_t last_number_ = 0;
};

}  // namespace engine::shm
