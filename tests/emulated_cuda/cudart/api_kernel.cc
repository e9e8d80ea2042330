// Kernels: those of tests/emulated_cuda/language.h run, those that nvcc compiled do nothing.
#include <memory>

#include "tests/emulated_cuda/cudart/process.h"
#include "tests/emulated_cuda/runtime.h"

using emulated_cuda::Block;
using emulated_cuda::CurrentDevice;
using emulated_cuda::kMaxSharedBytes;
using emulated_cuda::Leave;
using emulated_cuda::Process;

namespace {

// Limits of compute capability 9.0 (CUDA programming guide, "Technical Specifications").
bool IsShape(const dim3& grid, const dim3& block, size_t shared_bytes) {
  const bool grid_fits = grid.x > 0 && grid.x <= 2147483647u && grid.y > 0 && grid.y <= 65535 &&
                         grid.z > 0 && grid.z <= 65535;
  const bool block_fits = block.x > 0 && block.x <= 1024 && block.y > 0 && block.y <= 1024 &&
                          block.z > 0 && block.z <= 64 && block.x * block.y * block.z <= 1024;
  return grid_fits && block_fits && shared_bytes <= kMaxSharedBytes;
}

class Kernel {
 public:
  explicit Kernel(const EmulatedCudaKernel& kernel) : kernel_(kernel) {}
  ~Kernel() { kernel_.destroy(kernel_.arguments); }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  cudaError_t Run() const {
    Process& process = Process::Get();
    std::unique_ptr<Block> block = process.TakeBlock();
    block->BeginKernel(kernel_);
    const dim3& grid = kernel_.grid;
    std::vector<uint32_t> turns;
    process.order.Fill(size_t{grid.x} * grid.y * grid.z, 0, &turns);
    for (const uint32_t turn : turns) {
      block->Run({turn % grid.x, turn / grid.x % grid.y, turn / grid.x / grid.y});
    }
    process.GiveBlock(std::move(block));
    return cudaSuccess;
  }

 private:
  const EmulatedCudaKernel kernel_;
};

// A kernel can only be given to a stream of the current device.
cudaError_t CheckStream(cudaStream_t handle) {
  const std::shared_ptr<CUstream_st> stream = Process::Get().Find(handle);
  const bool fits = stream && stream->device == CurrentDevice();
  return fits ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t Launch(cudaStream_t stream, const EmulatedCudaKernel& launch) {
  auto kernel = std::make_shared<Kernel>(launch);
  if (!IsShape(launch.grid, launch.block, launch.shared_bytes)) {
    return cudaErrorInvalidConfiguration;
  }
  if (const cudaError_t error = CheckStream(stream)) return error;
  return Process::Get().Submit(stream, [kernel] { return kernel->Run(); });
}

struct PushedConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
thread_local PushedConfiguration t_pushed;

}  // namespace

cudaError_t emulated_cuda_launch(cudaStream_t stream, const EmulatedCudaKernel* kernel) {
  const cudaError_t entered = emulated_cuda::Enter("cudaLaunchKernel");
  if (entered != cudaSuccess) {
    kernel->destroy(kernel->arguments);
    return Leave(entered);
  }
  return Leave(Launch(stream, *kernel));
}

cudaError_t cudaLaunchKernel(const void*, dim3 grid, dim3 block, void**, size_t shared_bytes,
                             cudaStream_t stream) {
  EMULATED_CUDA_ENTER();
  if (!IsShape(grid, block, shared_bytes)) return Leave(cudaErrorInvalidConfiguration);
  if (const cudaError_t error = CheckStream(stream)) return Leave(error);
  return Leave(Process::Get().Submit(stream, [] { return cudaSuccess; }));
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  EMULATED_CUDA_ENTER();
  const bool too_much = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize &&
                        (value < 0 || static_cast<size_t>(value) > kMaxSharedBytes);
  return Leave(function && !too_much ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  EMULATED_CUDA_ENTER();
  if (!function) return Leave(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                   const void* function,
                                                                   int block_size,
                                                                   size_t shared_bytes, unsigned) {
  EMULATED_CUDA_ENTER();
  if (!function || block_size <= 0) return Leave(cudaErrorInvalidValue);
  *blocks = block_size <= 1024 && shared_bytes <= kMaxSharedBytes ? 1 : 0;
  return cudaSuccess;
}

// What the host code calls that nvcc writes.
extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) {
  return 1;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     CUstream_st* stream) {
  t_pushed = {grid, block, shared_bytes, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  *grid = t_pushed.grid;
  *block = t_pushed.block;
  *shared_bytes = t_pushed.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = t_pushed.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

}  // extern "C"
