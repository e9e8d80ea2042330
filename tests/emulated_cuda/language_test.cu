// The emulated language: shared memory, shapes, orders, and which mistakes end the process. That its
// indices, barriers and functions of warps are right is what every kernel needs.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/launch.h"
#include "tests/emulated_cuda/device_array.h"

namespace engine::cuda_ops {
namespace {

using emulated_cuda::Array;

// What shared memory holds at the start; then it is filled with something else.
__global__ void ReadFreshShared(uint32_t* out) {
  __shared__ uint32_t fixed[64];
  auto* const dynamic_shared = reinterpret_cast<uint32_t*>(DynamicShared());
  const unsigned i = threadIdx.x;
  out[blockIdx.x * 128 + i] = fixed[i] & dynamic_shared[i];
  out[blockIdx.x * 128 + 64 + i] = (reinterpret_cast<uintptr_t>(DynamicShared()) % 128) == 0;
  fixed[i] = dynamic_shared[i] = 1;
}

TEST(EmulatedLanguage, SharedMemoryIsPoisonAtTheStartOfEveryBlock) {
  Array<uint32_t> out(3 * 128);
  ASSERT_EQ(Launch(ReadFreshShared, 3, 64, 256, nullptr, out.data()), cudaSuccess);
  const std::vector<uint32_t> result = out.Read();
  for (size_t i = 0; i < result.size(); ++i) {
    EXPECT_EQ(result[i], i % 128 < 64 ? 0xffffffffu : 1u) << i;
  }
}

__global__ void Nothing() {}

TEST(EmulatedLanguage, ShapesThatNoDeviceTakesAreRefused) {
  EXPECT_EQ(Launch(Nothing, 0, 32, 0, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(Launch(Nothing, 1, 1025, 0, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(Nothing, 1, dim3(32, 33), 0, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(Nothing, dim3(1, 65536), 32, 0, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(Nothing, 1, 32, (227 << 10) + 1, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(Nothing, 1, 1024, 227 << 10, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// Thread 0 writes after the others have read, unless the order hides that a barrier is missing.
__global__ void WithoutBarrier(int* out) {
  __shared__ int value;
  if (threadIdx.x == 0) value = 7;
  out[threadIdx.x] = value;
}

TEST(EmulatedLanguage, TheOrderOfThreadsIsThatOfTheEnvironment) {
  const char* const text = std::getenv("EMULATED_CUDA_ORDER");
  const bool descending = text && std::strcmp(text, "descending") == 0;
  Array<int> out(32);
  ASSERT_EQ(Launch(WithoutBarrier, 1, 32, 0, nullptr, out.data()), cudaSuccess);
  EXPECT_EQ(out.Read()[31], descending ? -1 : 7);
}

// From here on: what ends the process. Children run the test from its start, with threads of their
// own.
class EmulatedLanguageDeath : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  template <typename... Parameters, typename... Arguments>
  static void Run(void (*kernel)(Parameters...), unsigned threads, Arguments... arguments) {
    static_cast<void>(Launch(kernel, 2, threads, 64, nullptr, arguments...));
    static_cast<void>(cudaDeviceSynchronize());
  }
};

__global__ void BarrierOfSome() {
  if (threadIdx.x < 20) __syncthreads();
}
__global__ void BarrierOfOneWarp() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncwarp();
    if (threadIdx.x == 41) __syncwarp();
  }
}
TEST_F(EmulatedLanguageDeath, ABarrierThatSomeThreadsNeverReach) {
  EXPECT_DEATH(Run(BarrierOfSome, 64),
               "deadlock: 44 threads have ended, 20 wait at __syncthreads.*grid \\(2, 1, 1\\), "
               "block \\(64, 1, 1\\), 64 bytes");
  EXPECT_DEATH(Run(BarrierOfOneWarp, 64),
               "deadlock: 31 threads have ended, 32 wait at __syncthreads, 1 in functions of warps "
               "\\(__syncwarp\\)");
}

__global__ void TwoFunctionsOfOneWarp() {
  if (threadIdx.x % 2 == 0) {
    __syncwarp();
  } else {
    __shfl_xor_sync(0xffffffffu, 1, 1);
  }
}
TEST_F(EmulatedLanguageDeath, LanesAtDifferentFunctions) {
  EXPECT_DEATH(Run(TwoFunctionsOfOneWarp, 32), "is at __(syncwarp|shfl_xor_sync), other lanes");
}

__global__ void MaskOfSome() {
  __syncwarp(0xff);
}
TEST_F(EmulatedLanguageDeath, PartsOfWarps) {
  EXPECT_DEATH(Run(MaskOfSome, 32), "with a mask of some lanes");
  EXPECT_DEATH(Run(TwoFunctionsOfOneWarp, 48), "in a part of a warp|other lanes");
}

__global__ void WriteBehindShared() {
  DynamicShared()[64 + threadIdx.x] = 1;
}
TEST_F(EmulatedLanguageDeath, AWriteBehindDynamicSharedMemory) {
  EXPECT_DEATH(Run(WriteBehindShared, 1), "byte 64 of dynamic shared memory was written");
}

__global__ void WriteAt(char* data, int index) {
  data[index] = 1;
}
TEST_F(EmulatedLanguageDeath, AWriteBesideAnAllocation) {
  const auto write = [](int index) {
    void* data = nullptr;
    static_cast<void>(cudaMalloc(&data, 100));
    Run(WriteAt, 1, static_cast<char*>(data), index);
    static_cast<void>(cudaFree(data));  // looks at what is beside it
  };
  EXPECT_DEATH(write(100), "byte 100 of an allocation of 100 bytes on device 0 was written");
  EXPECT_DEATH(write(-1), "byte -1 of an allocation of 100 bytes on device 0 was written");
  EXPECT_EXIT((write(99), std::exit(0)), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace engine::cuda_ops
