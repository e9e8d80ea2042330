#include "tests/emulated_cuda/cudart/order.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>

#include "tests/emulated_cuda/cudart/fail.h"

namespace emulated_cuda {

Order Order::FromEnvironment() {
  const char* const given = std::getenv("EMULATED_CUDA_ORDER");
  const std::string value = given ? given : "ascending";
  const std::string shuffled = "shuffled:";
  Order order;
  if (value == "descending") {
    order.kind_ = Kind::kDescending;
  } else if (value.compare(0, shuffled.size(), shuffled) == 0) {
    order.kind_ = Kind::kShuffled;
    order.seed_ = std::strtoull(value.c_str() + shuffled.size(), nullptr, 10);
  } else if (value != "ascending") {
    Fail("EMULATED_CUDA_ORDER is '%s': must be ascending, descending or shuffled:<seed>",
         value.c_str());
  }
  return order;
}

void Order::Fill(size_t count, uint64_t salt, std::vector<uint32_t>* out) const {
  out->resize(count);
  std::iota(out->begin(), out->end(), 0u);
  if (kind_ == Kind::kDescending) std::reverse(out->begin(), out->end());
  if (kind_ == Kind::kShuffled) {
    std::minstd_rand random(static_cast<uint32_t>(seed_ * 7919 + salt * 104729 + 1));
    std::shuffle(out->begin(), out->end(), random);
  }
}

}  // namespace emulated_cuda
