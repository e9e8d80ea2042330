// One block of a kernel at a time: its threads as fibers on one thread of the system, its barriers,
// the rendezvous of its warps, its shared memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulated_cuda/cudart/access_check.h"
#include "tests/emulated_cuda/cudart/fibers.h"
#include "tests/emulated_cuda/cudart/order.h"
#include "tests/emulated_cuda/runtime.h"

namespace emulated_cuda {

constexpr unsigned kWarpSize = 32;
constexpr size_t kMaxSharedBytes = 227 << 10;

class Block {
 public:
  explicit Block(Order order);
  ~Block();

  // Runs the block `index` of a kernel, whose shape is one that devices take, to its end. The
  // calling thread is the one that called BeginKernel.
  void Run(const uint3& index);
  // Before the blocks of a kernel.
  void BeginKernel(const EmulatedCudaKernel& kernel);

  // Called by the threads of the block, on their fibers:
  static Block& Current();
  void Barrier();
  const unsigned char* Exchange(const char* function, unsigned mask, const void* value,
                                size_t size_bytes);
  void MultiplyAdd(float* d, const uint32_t* a, uint32_t b0, uint32_t b1);
  // An access of the current thread to memory: looked at if the kernel is to be checked.
  void Access(const void* address, size_t size_bytes, bool write, bool aligned);
  void CopyAsync(void* shared, const void* global, size_t size_bytes, bool valid);
  void CommitCopies();
  void WaitForCopies(int pending);
  [[noreturn]] void FailHere(const char* what) const;

 private:
  enum class State : uint8_t { kReady, kAtBarrier, kInWarp, kEnded };

  struct Copy {
    void* shared;
    const void* global;
    size_t size_bytes;
    bool valid;
    uint32_t group;
  };
  struct Thread {
    EmulatedCudaThread view;
    const EmulatedCudaKernel* kernel = nullptr;
    uint32_t index = 0;
    State state = State::kReady;
    uint32_t group = 0;  // of copies: the one that is open
    std::vector<Copy> copies;
  };
  using Slot = std::array<unsigned char, kEmulatedCudaSlot>;
  struct Product {
    alignas(64) float at[16][8];
  };
  struct Warp {
    const char* function = nullptr;
    uint32_t arrived = 0;
    uint32_t rendezvous = 0;  // counts
    uint32_t barriers = 0;
    // Of this rendezvous and of the one before it.
    alignas(64) std::array<std::array<Slot, kWarpSize>, 2> values;
    std::array<Product, 2> products;
  };

  static void RunThread(void* thread);
  Thread& current() const { return *current_; }
  Warp& WarpOf(const Thread& thread) { return warps_[thread.index / kWarpSize]; }
  // Gives `size_bytes` and returns the number of the rendezvous; `complete` runs once, by the last.
  template <typename Complete>
  uint32_t Meet(const char* function, unsigned mask, const void* value, size_t size_bytes,
                Complete complete);
  static void Multiply(const std::array<Slot, kWarpSize>& factors, Product* product);

  void Prepare(const uint3& index);
  void PoisonShared();
  bool IsShared(const void* address) const;
  void CheckAfter() const;
  [[noreturn]] void FailDeadlock() const;
  std::string Where() const;

  const Order order_;
  FiberPool fibers_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<uint32_t> turns_;
  std::vector<unsigned char> memory_;  // dynamic shared memory, with a guard
  const EmulatedCudaKernel* kernel_ = nullptr;
  uint32_t count_ = 0;  // threads of a block
  uint3 index_{};
  uint32_t at_barrier_ = 0;  // threads
  uint32_t barriers_ = 0;    // counts
  Thread* current_ = nullptr;
  AccessCheck accesses_;
  unsigned char* static_shared_ = nullptr;
  size_t static_shared_bytes_ = 0;
};

}  // namespace emulated_cuda
