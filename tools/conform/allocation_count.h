// Counts the calls of operator new on this thread. allocation_count.cc replaces the operator for
// the whole process, plugins included: they take it from the C++ library, where the executable's
// comes first.
#pragma once

#include <cstdint>

namespace engine::conform {

class AllocationCounter {
 public:
  AllocationCounter() noexcept : start_(Total()) {}
  uint64_t count() const noexcept { return Total() - start_; }

 private:
  static uint64_t Total() noexcept;
  const uint64_t start_;
};

}  // namespace engine::conform
