#include "tests/emulated_cuda/cudart/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/emulated_cuda/cudart/fail.h"

namespace emulated_cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr unsigned char kGuard = 0xa5;
constexpr int kFresh = 0xff;  // four of them are a NaN, and -1
constexpr int kFreed = 0xfe;
// What is filled of a block: more would take the time of tests, for workspaces that they hardly
// use.
constexpr size_t kFilledBytes = 1 << 20;

}  // namespace

cudaError_t Memory::Allocate(Place place, int device, bool from_pool, size_t size_bytes,
                             void** out) {
  std::lock_guard lock(mutex_);
  const size_t device_index = static_cast<size_t>(device);
  const uint64_t before = place == Place::kDevice ? live_bytes_[device_index] : 0;
  if (size_bytes > kDeviceBytes - before) return cudaErrorMemoryAllocation;
  // block: nothing or 256 bytes, guard, data, guard
  const size_t padded = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* const block =
      static_cast<unsigned char*>(std::aligned_alloc(2 * kAlignment, padded + 4 * kAlignment));
  if (!block) return cudaErrorMemoryAllocation;
  Allocation allocation{.data = block + kAlignment,
                        .size_bytes = size_bytes,
                        .place = place,
                        .device = device,
                        .from_pool = from_pool,
                        .block = block};
  std::memset(block, kGuard, kAlignment);
  std::memset(allocation.data, kFresh, std::min(size_bytes, kFilledBytes));
  std::memset(allocation.data + size_bytes, kGuard, kGuardBytes);
  allocations_[allocation.data] = allocation;
  if (place == Place::kDevice) live_bytes_[device_index] += size_bytes;
  *out = allocation.data;
  return cudaSuccess;
}

cudaError_t Memory::Free(void* data, Place place) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(static_cast<const unsigned char*>(data));
  if (found == allocations_.end() || found->second.place != place) return cudaErrorInvalidValue;
  const Allocation allocation = found->second;
  CheckGuards(allocation);
  if (place == Place::kDevice) {
    live_bytes_[static_cast<size_t>(allocation.device)] -= allocation.size_bytes;
  }
  std::memset(allocation.data, kFreed, std::min(allocation.size_bytes, kFilledBytes));
  allocations_.erase(found);
  std::free(allocation.block);
  return cudaSuccess;
}

std::optional<Allocation> Memory::Find(const void* pointer) const {
  std::lock_guard lock(mutex_);
  const auto* const byte = static_cast<const unsigned char*>(pointer);
  auto after = allocations_.upper_bound(byte);
  if (after == allocations_.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(after)->second;
  if (byte >= allocation.data + std::max<size_t>(allocation.size_bytes, 1)) return std::nullopt;
  return allocation;
}

bool Memory::DeviceReaches(const void* pointer, size_t size_bytes) const {
  const std::optional<Allocation> found = Find(pointer);
  if (!found) return false;
  const auto* const byte = static_cast<const unsigned char*>(pointer);
  return size_bytes <= static_cast<size_t>(found->data + found->size_bytes - byte);
}

std::vector<Allocation> Memory::All() const {
  std::lock_guard lock(mutex_);
  std::vector<Allocation> all;
  for (const auto& [data, allocation] : allocations_) all.push_back(allocation);
  return all;
}

void Memory::CheckGuards(const Allocation& allocation) {
  const auto check = [&](const unsigned char* guard) {
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (guard[i] == kGuard) continue;
      Fail("byte %td of an allocation of %zu bytes on device %d was written",
           guard + i - allocation.data, allocation.size_bytes, allocation.device);
    }
  };
  check(allocation.data - kGuardBytes);
  check(allocation.data + allocation.size_bytes);
}

}  // namespace emulated_cuda
