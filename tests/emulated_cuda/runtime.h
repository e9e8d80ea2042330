// What the fake libcudart.so.13 of this folder offers besides the CUDA runtime: queues for other
// fakes, kernels that run on the host, and what tests ask about memory.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <utility>

extern "C" {

// Work of a stream. `run` is called by the stream's own thread, once, or, if it was recorded, once
// per launch of the graph; an error that it returns becomes the sticky error of the device.
// `destroy` is called once, when `run` will not be called any more. `run` may block, and may not
// call the runtime for its own stream.
struct EmulatedCudaWork {
  cudaError_t (*run)(void* state);
  void (*destroy)(void* state);
  void* state;
};

// Queues work as any asynchronous call of the runtime does; with an error the work is destroyed.
cudaError_t emulated_cuda_enqueue(cudaStream_t stream, EmulatedCudaWork work);

// What EMULATED_CUDA_FAULT has for this call of `function`, which another fake offers; 0: nothing.
int emulated_cuda_fault(const char* function);

// A kernel: `run` is called once per thread of the grid.
struct EmulatedCudaKernel {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  const void* function;  // for messages
  void (*run)(const void* arguments);
  void (*destroy)(void* arguments);
  void* arguments;
  // Gives any thread_local variable of the library that the kernel is in. All of them are shared
  // memory: they are poisoned before every block.
  void* (*find_shared)();
  // Whether the compiler calls the functions of cudart/instrumented.cc for it.
  bool checked;
};

// cudaErrorInvalidConfiguration for a shape that no device takes.
cudaError_t emulated_cuda_launch(cudaStream_t stream, const EmulatedCudaKernel* kernel);

// The thread of a kernel that is running. Null outside of kernels.
struct EmulatedCudaThread {
  uint3 thread_index;
  uint3 block_index;
  dim3 block_size;
  dim3 grid_size;
  unsigned char* dynamic_shared;
};
extern __thread const EmulatedCudaThread* emulated_cuda_thread
    __attribute__((tls_model("initial-exec")));

// Ends the process with a sentence, and where the kernel is that this thread runs, if any.
[[noreturn]] void emulated_cuda_fail(const char* what);

// __syncthreads.
void emulated_cuda_block_barrier();

// The rendezvous of the 32 lanes of a warp: each gives up to kEmulatedCudaSlot bytes and gets those of
// all, one slot per lane, which stay until its next rendezvous but one. All lanes must have called the
// same function with a mask of all lanes.
enum { kEmulatedCudaSlot = 32 };
const unsigned char* emulated_cuda_warp_exchange(const char* function, unsigned mask,
                                                 const void* value, size_t size_bytes);

// mma.m16n8k16 with bfloat16 factors: see kernels/mma.h.
void emulated_cuda_warp_multiply_add(float* d, const uint32_t* a, uint32_t b0, uint32_t b1);

// cp.async: nothing arrives before the wait; until then the target is poisoned.
void emulated_cuda_copy_async(void* shared, const void* global, size_t size_bytes, int valid);
void emulated_cuda_commit_copies();
void emulated_cuda_wait_for_copies(int pending);

// Whether [pointer, pointer + size_bytes) is within one allocation of a device.
int emulated_cuda_is_device_range(const void* pointer, size_t size_bytes);

}  // extern "C"

namespace emulated_cuda {

// emulated_cuda_enqueue of a callable that returns a cudaError_t.
template <typename Function>
cudaError_t Enqueue(cudaStream_t stream, Function function) {
  return emulated_cuda_enqueue(stream,
                               {[](void* state) { return (*static_cast<Function*>(state))(); },
                                [](void* state) { delete static_cast<Function*>(state); },
                                new Function(std::move(function))});
}

}  // namespace emulated_cuda
