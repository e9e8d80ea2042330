// Memory that MPI may still read and write when a transfer in it has been given up.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "engine/ext/shared_memory.h"

namespace engine::mpi {

class Arenas final : public SharedMemoryBase {
 public:
  // Once `is_broken`, which is borrowed, nothing is given back.
  explicit Arenas(const std::atomic<bool>& is_broken) : is_broken_(is_broken) {}
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;
  ~Arenas();

  Status Allocate(uint64_t size_bytes, void** out) noexcept override;
  void Free(void* data) noexcept override;

  // Whether all of it lies in an arena. [any-thread]
  bool Holds(const void* data, size_t size_bytes) const noexcept;

 private:
  const std::atomic<bool>& is_broken_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, size_t> sizes_;  // by address; guarded by mutex_
};

}  // namespace engine::mpi
