// Memory of the GPU that NCCL knows, so that it sends from and receives into it without a copy.
#pragma once

#include <map>
#include <mutex>

#include "comm.h"
#include "engine/ext/shared_memory.h"
#include "engine/host.h"
#include "gpu.h"

namespace engine::nccl {

// With `symmetric` every rank must allocate the same sizes in the same order, and an Allocate waits
// for that of the others: see the option. [any-thread]
class Arenas final : public SharedMemoryBase {
 public:
  // Borrows all.
  Arenas(Host& host, int32_t gpu, Comm& comm, bool symmetric)
      : host_(host), gpu_(gpu), comm_(comm), symmetric_(symmetric) {}
  ~Arenas() { Clear(); }

  // Gives all of it back, after the last transfer and before the end of `comm`.
  void Clear() noexcept;

  Status Allocate(uint64_t size_bytes, void** out) noexcept override;
  void Free(void* data) noexcept override;

 private:
  struct Arena {
    bool of_nccl = false;  // else the CUDA runtime's
    Comm::Registration registration;
  };

  Status Obtain(uint64_t size_bytes, void** out, Arena* arena) noexcept;
  Status Zero(void* data, uint64_t size_bytes) noexcept;
  Status Keep(void* data, const Arena& arena, Arena** kept) noexcept;
  Status Register(void* data, uint64_t size_bytes, Arena* arena) noexcept;
  void GiveBack(void* data, const Arena& arena) noexcept;

  Host& host_;
  const int32_t gpu_;
  Comm& comm_;
  const bool symmetric_;
  std::mutex mutex_;
  std::map<void*, Arena> arenas_;  // guarded by mutex_; a registration under way lies in it
};

}  // namespace engine::nccl
