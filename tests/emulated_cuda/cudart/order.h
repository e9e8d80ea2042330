// In which order threads and blocks run between two barriers, which CUDA leaves open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulated_cuda {

enum class Order { kAscending, kDescending };

// EMULATED_CUDA_ORDER: "ascending" (the default) or "descending". Anything else ends the process
// with a sentence.
Order OrderFromEnvironment();

// The numbers from 0 to count - 1 in this order.
void Fill(Order order, size_t count, std::vector<uint32_t>* out);

}  // namespace emulated_cuda
