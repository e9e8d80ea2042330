#include "cpu_device.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace engine::cpu_ops {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLargest = PTRDIFF_MAX - kHugePage;  // no object is larger

class CpuEvent final : public EventBase {
 public:
  Status WaitHost(int64_t) noexcept override { return {}; }
  void* native() noexcept override { return nullptr; }
};

class CpuStream final : public StreamBase {
 public:
  Status Record(Event*) noexcept override { return {}; }
  Status Wait(Event*) noexcept override { return {}; }
  Status Synchronize(int64_t) noexcept override { return {}; }
  void* native() noexcept override { return nullptr; }
};

template <typename Made, typename Interface>
Status Create(const char* what, Interface** out) noexcept {
  *out = new (std::nothrow) Made;
  if (*out != nullptr) return {};
  return Status::Error(StatusCode::kResourceExhausted, "no memory for a %s of the CPU device",
                       what);
}

}  // namespace

Status CpuDevice::Allocate(size_t size_bytes, void** out) noexcept {
  const size_t alignment = size_bytes >= kHugePage ? kHugePage : kCacheLine;
  const size_t rounded = (size_bytes / alignment + 1) * alignment;
  void* memory = size_bytes < kLargest ? std::aligned_alloc(alignment, rounded) : nullptr;
  if (memory == nullptr) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "cannot allocate %zu bytes of host memory; use a smaller model or batch",
                         size_bytes);
  }
  // First touch of a huge page costs an eighth of that of its 512 small ones. Only advice: memory
  // without it is as good, so a refusal does not matter.
  if (alignment == kHugePage) (void)madvise(memory, rounded, MADV_HUGEPAGE);
  *out = memory;
  return {};
}

void CpuDevice::Free(void* memory) noexcept {
  std::free(memory);
}

Status CpuDevice::Copy(void* target, const void* source, size_t size_bytes, Stream*) noexcept {
  if (size_bytes > 0) std::memcpy(target, source, size_bytes);
  return {};
}

Status CpuDevice::Zero(void* target, size_t size_bytes, Stream*) noexcept {
  if (size_bytes > 0) std::memset(target, 0, size_bytes);
  return {};
}

Status CpuDevice::CreateStream(Stream** out) noexcept {
  return Create<CpuStream>("stream", out);
}

Status CpuDevice::CreateEvent(Event** out) noexcept {
  return Create<CpuEvent>("event", out);
}

}  // namespace engine::cpu_ops
