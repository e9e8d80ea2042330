#include "arenas.h"

#include <sys/mman.h>

#include <exception>
#include <iterator>

namespace engine::mpi {

Arenas::~Arenas() {
  for (const auto& [data, size] : sizes_) munmap(const_cast<std::byte*>(data), size);
}

Status Arenas::Allocate(uint64_t size_bytes, void** out) noexcept {
  if (size_bytes == 0) return Status::Error(StatusCode::kInvalidArgument, "0 bytes of memory");
  void* const data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  try {
    if (data != MAP_FAILED) {
      const std::lock_guard lock(mutex_);
      sizes_.emplace(static_cast<const std::byte*>(data), size_bytes);
      *out = data;
      return {};
    }
  } catch (const std::exception&) {
    munmap(data, size_bytes);
  }
  return Status::Error(StatusCode::kResourceExhausted, "no memory for an arena of %llu bytes",
                       static_cast<unsigned long long>(size_bytes));
}

void Arenas::Free(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = sizes_.find(static_cast<const std::byte*>(data));
  if (found == sizes_.end() || is_broken_) return;
  munmap(data, found->second);
  sizes_.erase(found);
}

bool Arenas::Holds(const void* data, size_t size_bytes) const noexcept {
  const auto* const begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  const auto after = sizes_.upper_bound(begin);
  if (after == sizes_.begin()) return false;
  const auto& [arena, size] = *std::prev(after);
  return begin + size_bytes <= arena + size;
}

}  // namespace engine::mpi
