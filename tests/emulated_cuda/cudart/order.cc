#include "tests/emulated_cuda/cudart/order.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>

#include "tests/emulated_cuda/cudart/fail.h"

namespace emulated_cuda {

Order OrderFromEnvironment() {
  const char* const given = std::getenv("EMULATED_CUDA_ORDER");
  const std::string value = given ? given : "ascending";
  if (value == "descending") return Order::kDescending;
  if (value == "ascending") return Order::kAscending;
  Fail("EMULATED_CUDA_ORDER is '%s': must be ascending or descending", value.c_str());
}

void Fill(Order order, size_t count, std::vector<uint32_t>* out) {
  out->resize(count);
  std::iota(out->begin(), out->end(), 0u);
  if (order == Order::kDescending) std::reverse(out->begin(), out->end());
}

}  // namespace emulated_cuda
