// In which order threads and blocks run between two barriers, which CUDA leaves open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulated_cuda {

// EMULATED_CUDA_ORDER: "ascending" (the default), "descending" or "shuffled:<seed>". Anything else
// ends the process with a sentence.
class Order {
 public:
  static Order FromEnvironment();

  // The numbers from 0 to count - 1 in this order; `salt` makes shuffled ones different.
  void Fill(size_t count, uint64_t salt, std::vector<uint32_t>* out) const;

 private:
  enum class Kind { kAscending, kDescending, kShuffled };

  Kind kind_ = Kind::kAscending;
  uint64_t seed_ = 0;
};

}  // namespace emulated_cuda
