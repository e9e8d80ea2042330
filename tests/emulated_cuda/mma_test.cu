// Matrix instructions and asynchronous copies, against the tables of the PTX manual, which are
// written out here a second time.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/element.h"
#include "kernels/launch.h"
#include "kernels/mma.h"
#include "tests/emulated_cuda/device_array.h"

namespace engine::cuda_ops {
namespace {

using emulated_cuda::Array;

// The fragments come from memory in the order of lanes: a: 32 x 4 words, b: 32 x 2, d: 32 x 4.
__global__ void MultiplyFragments(const uint32_t* a, const uint32_t* b, float* d) {
  const unsigned lane = threadIdx.x;
  uint32_t a_words[4];
  float sums[4];
  for (unsigned i = 0; i < 4; ++i) {
    a_words[i] = a[lane * 4 + i];
    sums[i] = d[lane * 4 + i];
  }
  MultiplyAdd(sums, a_words, b[lane * 2], b[lane * 2 + 1]);
  for (unsigned i = 0; i < 4; ++i) d[lane * 4 + i] = sums[i];
}

struct Place {
  int row, column;
};
// "Matrix fragments for mma.m16n8k16", elements 0 to 7 of A, 0 to 3 of B and of C.
Place PlaceInA(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  const bool upper = (i >= 0 && i < 2) || (i >= 4 && i < 6);
  return {upper ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
Place PlaceInB(int lane, int i) {
  return {lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8), lane >> 2};
}
Place PlaceInC(int lane, int i) {
  return {i < 2 ? lane >> 2 : (lane >> 2) + 8, lane % 4 * 2 + (i & 1)};
}

uint16_t BitsOf(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

TEST(EmulatedMma, ProductOfFragments) {
  std::mt19937 random(7);
  float a[16][16], b[16][8], c[16][8];
  const auto draw = [&] {
    return __bfloat162float(__float2bfloat16_rn(static_cast<float>(random() % 2001) / 500 - 2));
  };
  const auto fill = [&](auto& matrix) {
    for (auto& row : matrix) {
      for (float& value : row) value = draw();
    }
  };
  fill(a);
  fill(b);
  fill(c);
  std::vector<uint32_t> a_words(128), b_words(64);
  std::vector<float> d(128);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 8; ++i) {
      const Place place = PlaceInA(lane, i);
      a_words[static_cast<size_t>(lane * 4 + i / 2)] |=
          static_cast<uint32_t>(BitsOf(a[place.row][place.column])) << (i % 2 * 16);
    }
    for (int i = 0; i < 4; ++i) {
      const Place in_b = PlaceInB(lane, i), in_c = PlaceInC(lane, i);
      b_words[static_cast<size_t>(lane * 2 + i / 2)] |=
          static_cast<uint32_t>(BitsOf(b[in_b.row][in_b.column])) << (i % 2 * 16);
      d[static_cast<size_t>(lane * 4 + i)] = c[in_c.row][in_c.column];
    }
  }
  Array<uint32_t> a_memory(a_words), b_memory(b_words);
  Array<float> d_memory(d);
  ASSERT_EQ(Launch(MultiplyFragments, 1, 32, 0, nullptr, a_memory.data(), b_memory.data(),
                   d_memory.data()),
            cudaSuccess);
  const std::vector<float> result = d_memory.Read();
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Place place = PlaceInC(lane, i);
      double expected = c[place.row][place.column];
      for (int k = 0; k < 16; ++k) {
        expected += static_cast<double>(a[place.row][k]) * b[k][place.column];
      }
      EXPECT_NEAR(result[static_cast<size_t>(lane * 4 + i)], expected, 1e-4)
          << place.row << ' ' << place.column;
    }
  }
}

// Element (row, column) of matrix i is 256 i + 16 row + column.
__global__ void LoadAll(uint32_t* plain, uint32_t* transposed) {
  auto* const shared = reinterpret_cast<uint16_t*>(DynamicShared());
  const unsigned lane = threadIdx.x;
  // Rows are 24 elements apart and the matrices follow each other.
  for (unsigned column = 0; column < 8; ++column) {
    shared[lane * 24 + column] = static_cast<uint16_t>(256 * (lane / 8) + 16 * (lane % 8) + column);
  }
  __syncthreads();
  uint32_t words[4];
  LoadMatrices(words, shared + lane * 24);
  for (unsigned i = 0; i < 4; ++i) plain[i * 32 + lane] = words[i];
  LoadMatricesTransposed(words, shared + lane * 24);
  for (unsigned i = 0; i < 4; ++i) transposed[i * 32 + lane] = words[i];
}

TEST(EmulatedMma, LoadedMatrices) {
  Array<uint32_t> plain(128), transposed(128);
  ASSERT_EQ(Launch(LoadAll, 1, 32, 32 * 48, nullptr, plain.data(), transposed.data()), cudaSuccess);
  const std::vector<uint32_t> rows = plain.Read(), columns = transposed.Read();
  for (uint32_t i = 0; i < 128; ++i) {
    const uint32_t matrix = i / 32, lane = i % 32;
    const auto element = [&](uint32_t row, uint32_t column) {
      return 256 * matrix + 16 * row + column;
    };
    const uint32_t outer = lane / 4, inner = 2 * (lane % 4);
    EXPECT_EQ(rows[i], element(outer, inner) | element(outer, inner + 1) << 16) << i;
    EXPECT_EQ(columns[i], element(inner, outer) | element(inner + 1, outer) << 16) << i;
  }
}

// out[0..3]: what a thread sees of three copies (the last of zeros) after the copies, and with at
// most two, one and no group under way.
__global__ void Copies(const int4* in, int* out) {
  auto* const shared = reinterpret_cast<int4*>(DynamicShared());
  const auto seen = [&] { return shared[0].x + 10 * shared[1].y + 100 * shared[2].z; };
  shared[0] = shared[1] = shared[2] = make_int4(5, 5, 5, 5);
  for (int i = 0; i < 3; ++i) {
    CopyAsync16(shared + i, in + i, i < 2);
    CommitCopies();
  }
  out[0] = seen();
  WaitForCopies<2>();
  out[1] = seen();
  WaitForCopies<1>();
  out[2] = seen();
  CopyAsync16(shared, in + 3, true);  // of a group that is never committed
  WaitForCopies<0>();
  out[3] = seen();
}

TEST(EmulatedMma, CopiesArriveWhenTheyAreWaitedFor) {
  Array<int4> in(std::vector<int4>(4, make_int4(1, 2, 3, 4)));
  Array<int> out(4);
  ASSERT_EQ(Launch(Copies, 1, 1, 48, nullptr, in.data(), out.data()), cudaSuccess);
  EXPECT_EQ(out.Read(), (std::vector<int>{-1 - 10 - 100, 1 - 10 - 100, 1 + 20 - 100, -1 + 20}));
}

__global__ void MisplacedCopy(const char* in, int target, int source) {
  CopyAsync16(DynamicShared() + target, in + source, true);
}
__global__ void CopyToGlobal(char* memory) {
  CopyAsync16(memory, memory + 16, true);
}
__global__ void MisplacedRow() {
  uint32_t words[4];
  LoadMatrices(words, DynamicShared() + 8);
}

TEST(EmulatedMmaDeath, MisplacedAddresses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto copy = [](int target, int source) {
    Array<char> in(64);
    static_cast<void>(Launch(MisplacedCopy, 1, 1, 64, nullptr, in.data(), target, source));
    static_cast<void>(cudaDeviceSynchronize());
  };
  EXPECT_DEATH(copy(8, 0), "target of an asynchronous copy is not aligned to 16");
  EXPECT_DEATH(copy(0, 8), "source of an asynchronous copy is not aligned to 16");
  EXPECT_DEATH(copy(64, 0), "target of an asynchronous copy is not in shared memory");
  EXPECT_DEATH(
      {
        Array<char> memory(64);
        static_cast<void>(Launch(CopyToGlobal, 1, 1, 64, nullptr, memory.data()));
        static_cast<void>(cudaDeviceSynchronize());
      },
      "not in shared memory");
  EXPECT_DEATH(
      {
        static_cast<void>(Launch(MisplacedRow, 1, 32, 64, nullptr));
        static_cast<void>(cudaDeviceSynchronize());
      },
      "row of a matrix.*not aligned to 16");
}

}  // namespace
}  // namespace engine::cuda_ops
