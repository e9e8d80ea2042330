// Kernels, which tests/emulated_cuda/language.h starts.
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
    emulated_cuda::Fill(process.order, size_t{grid.x} * grid.y * grid.z, &turns);
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

}  // namespace

cudaError_t emulated_cuda_launch(cudaStream_t stream, const EmulatedCudaKernel* kernel) {
  const cudaError_t entered = emulated_cuda::Enter("cudaLaunchKernel");
  if (entered != cudaSuccess) {
    kernel->destroy(kernel->arguments);
    return Leave(entered);
  }
  return Leave(Launch(stream, *kernel));
}
