// The check of accesses: this file is compiled with -fsanitize=thread,alignment.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/element.h"
#include "kernels/launch.h"
#include "kernels/mma.h"
#include "kernels/reduce.h"
#include "tests/emulated_cuda/device_array.h"

namespace engine::cuda_ops {
namespace {

using emulated_cuda::Array;

enum class Sync { kNone, kWarp, kBlock };

// Thread i reads what thread (i + distance) % threads has written.
__global__ void ReadNeighbour(int* out, int distance, Sync sync) {
  __shared__ int values[64];
  const int i = static_cast<int>(threadIdx.x);
  values[i] = i;
  if (sync == Sync::kWarp) __syncwarp();
  if (sync == Sync::kBlock) __syncthreads();
  out[i] = values[(i + distance) % static_cast<int>(blockDim.x)];
}

// The same after a shuffle, which orders no memory.
__global__ void ReadAfterShuffle(int* out) {
  int* const values = reinterpret_cast<int*>(DynamicShared());
  const int i = static_cast<int>(threadIdx.x);
  values[i] = i;
  static_cast<void>(__shfl_xor_sync(0xffffffffu, i, 1));
  out[i] = values[i ^ 1];
}

// All read one word, then one thread writes it.
__global__ void WriteAfterReads(int* out, bool barrier) {
  __shared__ int value;
  if (threadIdx.x == 0) value = 1;
  __syncthreads();
  out[threadIdx.x] = value;
  if (barrier) __syncthreads();
  if (threadIdx.x == 0) value = 2;
}

// Blocks write `apart` elements from each other.
__global__ void WriteOfBlocks(Bf16* out, int apart) {
  out[static_cast<int>(blockIdx.x) * apart] = FromFloat<Bf16>(1.0f);
}

__global__ void ReadPack(const float* in, float* out, int first) {
  const auto pack = *reinterpret_cast<const Pack<float, 4>*>(in + first);
  out[0] = pack.at[0] + pack.at[3];
}

__global__ void CopyAndRead(const int4* in, int* out, bool barrier) {
  auto* const shared = reinterpret_cast<int4*>(DynamicShared());
  CopyAsync16(shared + threadIdx.x, in + threadIdx.x, true);
  CommitCopies();
  WaitForCopies<0>();
  if (barrier) __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x ^ 1].x;
}

__global__ void LoadRows(uint32_t* out, bool barrier) {
  auto* const shared = reinterpret_cast<uint4*>(DynamicShared());
  shared[threadIdx.x ^ 1] = make_uint4(1, 2, 3, 4);
  if (barrier) __syncwarp();
  uint32_t words[4];
  LoadMatrices(words, shared + threadIdx.x);
  out[threadIdx.x] = words[0];
}

template <typename... Parameters, typename... Arguments>
void Start(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
           Arguments... arguments) {
  EXPECT_EQ(Launch(kernel, blocks, threads, 1024, nullptr, arguments...), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

class EmulatedAccess : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  Array<int> out_{64};
};

TEST_F(EmulatedAccess, ReadsOfSharedMemoryNeedABarrier) {
  Start(ReadNeighbour, 1, 64, out_.data(), 0, Sync::kNone);  // one's own
  Start(ReadNeighbour, 1, 64, out_.data(), 33, Sync::kBlock);
  Start(ReadNeighbour, 1, 32, out_.data(), 1, Sync::kWarp);
  EXPECT_EQ(out_.Read()[31], 0);
  constexpr auto kRace = "no barrier is between them .the other one: thread [0-9]+ of block 0.";
  EXPECT_DEATH(Start(ReadNeighbour, 1, 64, out_.data(), 1, Sync::kNone), kRace);
  EXPECT_DEATH(Start(ReadNeighbour, 1, 64, out_.data(), 1, Sync::kWarp), kRace);
  EXPECT_DEATH(Start(ReadAfterShuffle, 1, 32, out_.data()), kRace);
}

TEST_F(EmulatedAccess, SoDoWritesAfterReads) {
  Start(WriteAfterReads, 1, 64, out_.data(), true);
  EXPECT_DEATH(Start(WriteAfterReads, 1, 64, out_.data(), false),
               "a thread (writes what another has read|reads what another has written)");
}

TEST_F(EmulatedAccess, BlocksMayNotMeet) {
  Array<Bf16> out(8);
  Start(WriteOfBlocks, 8, 1, out.data(), 1);
  EXPECT_DEATH(Start(WriteOfBlocks, 8, 1, out.data(), 0), "two threads write to one address");
}

TEST_F(EmulatedAccess, AccessesAreAlignedAndInsideOfAllocations) {
  Array<float> in(std::vector<float>(8, 2)), out(1);
  Start(ReadPack, 1, 1, in.data(), out.data(), 4);
  EXPECT_EQ(out.Read()[0], 4);
  EXPECT_DEATH(Start(ReadPack, 1, 1, in.data(), out.data(), 2), "not aligned as its type is");
  EXPECT_DEATH(Start(ReadPack, 1, 1, in.data(), out.data(), 8), "beside an allocation");
  EXPECT_DEATH(Start(ReadPack, 1, 1, in.data(), out.data(), -4), "beside an allocation");
}

TEST_F(EmulatedAccess, CopiesAndMatricesAreAccesses) {
  Array<int4> in(64);
  Array<uint32_t> rows(32);
  Start(CopyAndRead, 1, 64, in.data(), out_.data(), true);
  EXPECT_DEATH(Start(CopyAndRead, 1, 64, in.data(), out_.data(), false), "no barrier is between");
  Start(LoadRows, 1, 32, rows.data(), true);
  EXPECT_DEATH(Start(LoadRows, 1, 32, rows.data(), false), "no barrier is between");
}

}  // namespace
}  // namespace engine::cuda_ops
