// Finds accesses of kernels to memory that no barrier orders, and accesses beside allocations.
//
// Two accesses of different threads, one of them a write, are ordered by a __syncthreads between
// them, or, within a warp, by a __syncwarp; nothing orders blocks of one launch. (Shuffles and
// votes do not order memory: CUDA programming guide, "Warp Shuffle Functions".) Kept per two bytes
// are the last write and the last two reads, so a conflict can be missed, but none is invented:
// but for accesses of single bytes, which are not followed for that reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace emulated_cuda {

struct Moment {
  uint32_t block = 0;  // number in the grid, from 1; 0: never
  uint32_t thread = 0;
  uint32_t barriers = 0;  // of the block, and of the warp, until then
  uint32_t warp_barriers = 0;
};

// Of one block at a time, on one thread of the system.
class AccessCheck {
 public:
  // Before the blocks of a kernel: memory that is not known now is not checked.
  void BeginKernel(const unsigned char* static_shared, size_t static_bytes,
                   const unsigned char* dynamic_shared, size_t dynamic_bytes);
  void BeginBlock();

  // What is wrong with an access, or null; `other` is then the earlier one of a conflict.
  const char* Access(const void* address, size_t size_bytes, bool write, const Moment& now,
                     Moment* other);

 private:
  static constexpr size_t kGranule = 2;

  struct Cell {
    Moment write;
    Moment reads[2];
  };
  struct Range {
    const unsigned char* begin = nullptr;
    const unsigned char* end = nullptr;  // of the memory; guards are on both sides
    bool races = false;                  // whether they are looked for
  };
  struct Region {
    const unsigned char* begin = nullptr;
    size_t size_bytes = 0;
    std::vector<Cell> cells;

    void Set(const unsigned char* first, size_t size);
    bool Has(const unsigned char* byte) const { return byte >= begin && byte < begin + size_bytes; }
  };

  static bool IsOrdered(const Moment& before, const Moment& now);
  static const char* Note(Cell& cell, bool write, const Moment& now, Moment* other);
  const char* AccessShared(Region& region, const unsigned char* byte, size_t size_bytes, bool write,
                           const Moment& now, Moment* other);
  const char* AccessGlobal(const unsigned char* byte, size_t size_bytes, bool write,
                           const Moment& now, Moment* other);
  const Range* RangeNear(const unsigned char* byte);

  Region dynamic_, static_;
  std::vector<Range> ranges_;  // in order
  const Range* last_ = nullptr;
  std::unordered_map<uintptr_t, Cell> global_;
};

}  // namespace emulated_cuda
