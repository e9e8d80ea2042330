#include "tools/conform/allocation_count.h"

#include <cstdlib>
#include <new>

namespace {

thread_local engine::conform::AllocationCounter::Sum allocated;

void* AllocateOrNull(size_t size, size_t alignment) noexcept {
  ++allocated.calls;
  allocated.bytes += size;
  // aligned_alloc wants a multiple of the alignment.
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* Allocate(size_t size, size_t alignment) {
  if (void* memory = AllocateOrNull(size, alignment)) return memory;
  throw std::bad_alloc();
}

constexpr size_t kAlignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

// Every form that the plugins or this binary may call: a sanitizer brings its own of each, which do
// not call each other.
#define ENGINE_NEW(name)                                                                \
  void* name(size_t size) {                                                             \
    return Allocate(size, kAlignment);                                                  \
  }                                                                                     \
  void* name(size_t size, const std::nothrow_t&) noexcept {                             \
    return AllocateOrNull(size, kAlignment);                                            \
  }                                                                                     \
  void* name(size_t size, std::align_val_t alignment) {                                 \
    return Allocate(size, static_cast<size_t>(alignment));                              \
  }                                                                                     \
  void* name(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept { \
    return AllocateOrNull(size, static_cast<size_t>(alignment));                        \
  }
#define ENGINE_DELETE(name)                                    \
  void name(void* memory) noexcept {                           \
    std::free(memory);                                         \
  }                                                            \
  void name(void* memory, size_t) noexcept {                   \
    std::free(memory);                                         \
  }                                                            \
  void name(void* memory, std::align_val_t) noexcept {         \
    std::free(memory);                                         \
  }                                                            \
  void name(void* memory, size_t, std::align_val_t) noexcept { \
    std::free(memory);                                         \
  }
ENGINE_NEW(operator new)
ENGINE_NEW(operator new[])
ENGINE_DELETE(operator delete)
ENGINE_DELETE(operator delete[])

namespace engine::conform {

AllocationCounter::Sum AllocationCounter::Total() noexcept {
  return allocated;
}

}  // namespace engine::conform
