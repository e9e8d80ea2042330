// Counts the calls of operator new on this thread, and their bytes. allocation_count.cc replaces the operator for
// the whole process, plugins included: they take it from the C++ library, where the executable's
// comes first.
#pragma once

#include <cstdint>

namespace engine::conform {

class AllocationCounter {
 public:
  uint64_t count() const noexcept { return Total().calls - start_.calls; }
  uint64_t bytes() const noexcept { return Total().bytes - start_.bytes; }

  struct Sum {
    uint64_t calls, bytes;
  };

 private:
  static Sum Total() noexcept;
  const Sum start_ = Total();
};

}  // namespace engine::conform
