// Memory that the ranks of one host can read and write in each other: what a communicator may offer
// beside transfers.
//
// Buffers of a transfer may lie anywhere. When all ranks' buffers lie in memory of this allocator,
// ranks work on each other's buffers in place instead of copying through a staging area.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/status.h"

namespace engine {

// Query<SharedMemory> of a Communicator gives one or null. It lives as long as the communicator.
ENGINE_INTERFACE(SharedMemory, Interface, "engine.shared_memory.draft/1", Allocate, Free);
class SharedMemoryBase : public Implements<SharedMemory> {
 public:
  // Allocate gives zeroes; kInvalidArgument for 0 bytes, kResourceExhausted when there is no
  // memory; Free ignores null. *out = `size_bytes`, aligned to a page, of which every page is there
  // already. Not collective: ranks may allocate different sizes in any order; peers learn of it
  // without a call. Valid until Free or the end of the communicator. kPeerLost when a rank is gone.
  // [any-thread]
  virtual Status Allocate(uint64_t size_bytes, void** out) noexcept = 0;

  // Gives back what Allocate returned when no transfer that is not terminal has
  // buffers in it. After a transfer failed, peers may write to its buffers until their
  // communicators have failed too: keep such memory as long as the communicator. [any-thread]
  virtual void Free(void* data) noexcept = 0;

 protected:
  ~SharedMemoryBase() = default;
};

}  // namespace engine
