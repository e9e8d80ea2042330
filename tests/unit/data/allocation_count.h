// Counts the calls of operator new in a test binary that links allocation_count.cc.
#pragma once

#include <cstdint>

namespace engine::testing {

int64_t AllocationCount();

}  // namespace engine::testing
