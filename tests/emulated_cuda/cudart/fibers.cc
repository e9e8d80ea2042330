#include "tests/emulated_cuda/cudart/fibers.h"

#include <sys/mman.h>

#include <utility>

#include "tests/emulated_cuda/cudart/fail.h"

namespace emulated_cuda {
namespace {

namespace context = boost::context;

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = 128 << 10;  // with its page

// The pool owns all stacks.
struct NoAllocator {
  void deallocate(context::stack_context&) noexcept {}
};

}  // namespace

FiberPool::FiberPool() : fibers_(kMaxThreads) {
  void* memory = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) Fail("no memory for the stacks of %zu threads", kMaxThreads);
  stacks_ = static_cast<std::byte*>(memory);
}

FiberPool::~FiberPool() {
  fibers_.clear();
  munmap(stacks_, kMaxThreads * kStackBytes);
}

void FiberPool::Make(size_t index) {
  std::byte* const stack = stacks_ + index * kStackBytes;
  if (mprotect(stack, kPage, PROT_NONE) != 0) Fail("the page below a stack cannot be protected");
  context::stack_context where;
  // Not all in one set of a cache: an odd number of lines apart, up to half of a usual L2.
  const size_t apart = index * 11 * 64 % (size_t{32} << 10);
  where.size = kStackBytes - kPage - apart;
  where.sp = stack + kStackBytes - apart;
  fibers_[index].context = context::fiber(
      std::allocator_arg, context::preallocated(where.sp, where.size, where), NoAllocator(),
      [this, index](context::fiber&& caller) { return Body(index, std::move(caller)); });
}

context::fiber FiberPool::Body(size_t index, context::fiber&& caller) {
  caller_ = std::move(caller);
  for (Fiber& fiber = fibers_[index];;) {
    fiber.function(fiber.argument);
    fiber.busy = false;
    Suspend();
  }
}

void FiberPool::Start(size_t index, void (*function)(void*), void* argument) {
  if (!fibers_[index].context) Make(index);
  fibers_[index].function = function;
  fibers_[index].argument = argument;
  fibers_[index].busy = true;
}

bool FiberPool::Resume(size_t index) {
  fibers_[index].context = std::move(fibers_[index].context).resume();
  return fibers_[index].busy;
}

bool FiberPool::Owns(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  return byte >= stacks_ && byte < stacks_ + kMaxThreads * kStackBytes;
}

void FiberPool::Suspend() {
  caller_ = std::move(caller_).resume();
}

}  // namespace emulated_cuda
