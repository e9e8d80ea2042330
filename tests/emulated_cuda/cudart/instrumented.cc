// What the compiler calls for each access to memory in kernels that were compiled with
// -fsanitize=thread,alignment. They are linked to this instead of the libraries of the sanitizers.
#include <cstddef>

#include "tests/emulated_cuda/cudart/block.h"

namespace {

void Access(const void* address, size_t size_bytes, bool write, bool aligned) {
  if (!emulated_cuda_thread) return;  // host code of the same file
  emulated_cuda::Block::Current().Access(address, size_bytes, write, aligned);
}

}  // namespace

#define EMULATED_CUDA_ACCESSES(size)                       \
  void __tsan_read##size(const void* address) {            \
    Access(address, size, false, true);                    \
  }                                                        \
  void __tsan_write##size(const void* address) {           \
    Access(address, size, true, true);                     \
  }                                                        \
  void __tsan_unaligned_read##size(const void* address) {  \
    Access(address, size, false, false);                   \
  }                                                        \
  void __tsan_unaligned_write##size(const void* address) { \
    Access(address, size, true, false);                    \
  }

extern "C" {

EMULATED_CUDA_ACCESSES(1)
EMULATED_CUDA_ACCESSES(2)
EMULATED_CUDA_ACCESSES(4)
EMULATED_CUDA_ACCESSES(8)
EMULATED_CUDA_ACCESSES(16)
void __tsan_read_range(const void* address, size_t size_bytes) {
  Access(address, size_bytes, false, false);
}
void __tsan_write_range(const void* address, size_t size_bytes) {
  Access(address, size_bytes, true, false);
}
// Atomics of the standard library in host code of the same file: kernels have none.
int __tsan_atomic32_fetch_add(volatile int* value, int change, int) {
  return __atomic_fetch_add(value, change, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_sub(volatile int* value, int change, int) {
  return __atomic_fetch_sub(value, change, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_load(const volatile int* value, int) {
  return __atomic_load_n(value, __ATOMIC_SEQ_CST);
}
char __tsan_atomic8_load(const volatile char* value, int) {
  return __atomic_load_n(value, __ATOMIC_SEQ_CST);
}
// An access by a pointer that its type says is aligned, and is not: a device would stop.
void __ubsan_handle_type_mismatch_v1_abort(void*, void*) {
  emulated_cuda_fail("an access is not aligned as its type is");
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

}  // extern "C"
