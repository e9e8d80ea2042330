// The threads of a block: fibers that live as long as the pool and run one function after another,
// on stacks with an unreadable page below each.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <vector>

namespace emulated_cuda {

constexpr size_t kMaxThreads = 1024;

class FiberPool {
 public:
  FiberPool();
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  // The next Resume of fiber `index`, which must not be in the middle of something, runs
  // `function(argument)`.
  void Start(size_t index, void (*function)(void*), void* argument);
  // Runs fiber `index` until it suspends; false: until its function has returned.
  bool Resume(size_t index);
  // Called by the fiber that runs: goes back to Resume.
  void Suspend();

  // Whether an address is in a stack.
  bool Owns(const void* address) const;

 private:
  struct Fiber {
    boost::context::fiber context;
    void (*function)(void*) = nullptr;
    void* argument = nullptr;
    bool busy = false;
  };

  boost::context::fiber Body(size_t index, boost::context::fiber&& caller);
  void Make(size_t index);

  std::vector<Fiber> fibers_;
  std::byte* stacks_ = nullptr;
  boost::context::fiber caller_;  // of Resume, while a fiber runs
};

}  // namespace emulated_cuda
