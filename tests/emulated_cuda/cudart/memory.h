// Memory of the emulated devices and pinned host memory: blocks of this process between guards.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace emulated_cuda {

enum class Place { kDevice, kHost };

struct Allocation {
  unsigned char* data = nullptr;
  size_t size_bytes = 0;
  Place place = Place::kDevice;
  int device = 0;
  bool from_pool = false;
  unsigned char* block = nullptr;
};

// All of it. [any-thread]
class Memory {
 public:
  explicit Memory(int devices) : live_bytes_(static_cast<size_t>(devices)) {}

  // Aligned to 256 bytes and no more; the first bytes are poison. cudaErrorMemoryAllocation beyond
  // kDeviceBytes.
  cudaError_t Allocate(Place place, int device, bool from_pool, size_t size_bytes, void** out);
  // cudaErrorInvalidValue for what was not allocated, or not there. Checks the guards.
  cudaError_t Free(void* data, Place place);

  // The allocation that `pointer` is in.
  std::optional<Allocation> Find(const void* pointer) const;
  // Whether a device may touch all of it.
  bool DeviceReaches(const void* pointer, size_t size_bytes) const;
  // In the order of addresses.
  std::vector<Allocation> All() const;

  static constexpr uint64_t kDeviceBytes = uint64_t{8} << 30;
  static constexpr size_t kGuardBytes = 256;  // on both sides of every allocation

 private:
  static void CheckGuards(const Allocation& allocation);

  mutable std::mutex mutex_;
  std::map<const unsigned char*, Allocation> allocations_;  // guarded by mutex_, as the next
  std::vector<uint64_t> live_bytes_;
};

}  // namespace emulated_cuda
