#include "tests/emulated_cuda/cudart/access_check.h"

#include <algorithm>

#include "tests/emulated_cuda/cudart/process.h"

namespace emulated_cuda {

void AccessCheck::Region::Set(const unsigned char* first, size_t size) {
  begin = first;
  size_bytes = size;
  cells.assign(size / kGranule + 1, {});
}

void AccessCheck::BeginKernel(const unsigned char* static_shared, size_t static_bytes,
                              const unsigned char* dynamic_shared, size_t dynamic_bytes) {
  static_.Set(static_shared, static_bytes);
  dynamic_.Set(dynamic_shared, dynamic_bytes);
  ranges_.clear();
  for (const Allocation& allocation : Process::Get().memory.All()) {
    ranges_.push_back({allocation.data, allocation.data + allocation.size_bytes,
                       allocation.place == Place::kDevice});
  }
  last_ = nullptr;
  global_.clear();
}

void AccessCheck::BeginBlock() {
  std::fill(static_.cells.begin(), static_.cells.end(), Cell());
  std::fill(dynamic_.cells.begin(), dynamic_.cells.end(), Cell());
}

const char* AccessCheck::Access(const void* address, size_t size_bytes, bool write,
                                const Moment& now, Moment* other) {
  const auto* const byte = static_cast<const unsigned char*>(address);
  if (dynamic_.Has(byte)) return AccessShared(dynamic_, byte, size_bytes, write, now, other);
  if (static_.Has(byte)) return AccessShared(static_, byte, size_bytes, write, now, other);
  return AccessGlobal(byte, size_bytes, write, now, other);
}

const char* AccessCheck::AccessShared(Region& region, const unsigned char* byte, size_t size_bytes,
                                      bool write, const Moment& now, Moment* other) {
  const auto first = static_cast<size_t>(byte - region.begin);
  if (first + size_bytes > region.size_bytes) return "an access ends behind shared memory";
  if (size_bytes < kGranule) return nullptr;
  for (size_t i = first / kGranule; i <= (first + size_bytes - 1) / kGranule; ++i) {
    if (const char* error = Note(region.cells[i], write, now, other)) return error;
  }
  return nullptr;
}

const char* AccessCheck::AccessGlobal(const unsigned char* byte, size_t size_bytes, bool write,
                                      const Moment& now, Moment* other) {
  const Range* const range = RangeNear(byte);
  if (!range) return nullptr;
  if (byte < range->begin || byte + size_bytes > range->end) {
    return "an access is beside an allocation";
  }
  if (!range->races || size_bytes < kGranule) return nullptr;
  const auto first = reinterpret_cast<uintptr_t>(byte);
  for (uintptr_t i = first / kGranule; i <= (first + size_bytes - 1) / kGranule; ++i) {
    if (const char* error = Note(global_[i], write, now, other)) return error;
  }
  return nullptr;
}

// The allocation that `byte` is in, or beside.
const AccessCheck::Range* AccessCheck::RangeNear(const unsigned char* byte) {
  const auto is_near = [&](const Range& range) {
    return byte >= range.begin - Memory::kGuardBytes && byte < range.end + Memory::kGuardBytes;
  };
  if (last_ && is_near(*last_)) return last_;
  const auto after = std::upper_bound(
      ranges_.begin(), ranges_.end(), byte,
      [](const unsigned char* at, const Range& range) { return at < range.begin; });
  if (after != ranges_.begin() && is_near(*std::prev(after))) return last_ = &*std::prev(after);
  return after != ranges_.end() && is_near(*after) ? last_ = &*after : nullptr;
}

bool AccessCheck::IsOrdered(const Moment& before, const Moment& now) {
  if (before.block == 0) return true;
  if (before.block != now.block) return false;
  if (before.thread == now.thread || before.barriers < now.barriers) return true;
  return before.thread / 32 == now.thread / 32 && before.warp_barriers < now.warp_barriers;
}

const char* AccessCheck::Note(Cell& cell, bool write, const Moment& now, Moment* other) {
  if (!IsOrdered(cell.write, now)) {
    *other = cell.write;
    return write ? "two threads write to one address, and no barrier is between them"
                 : "a thread reads what another has written, and no barrier is between them";
  }
  if (write) {
    for (const Moment& read : cell.reads) {
      if (IsOrdered(read, now)) continue;
      *other = read;
      return "a thread writes what another has read, and no barrier is between them";
    }
    cell.write = now;
    return nullptr;
  }
  const bool again = cell.reads[0].block == now.block && cell.reads[0].thread == now.thread;
  if (!again) cell.reads[1] = cell.reads[0];
  cell.reads[0] = now;
  return nullptr;
}

}  // namespace emulated_cuda
