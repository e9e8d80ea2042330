#include "app/data/permutation.h"

#include <bit>
#include <utility>

#include "engine/dataset.h"

namespace engine::data {

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t epoch) noexcept
    : size_(static_cast<uint64_t>(size)),
      half_bits_(size > 1 ? (std::bit_width(static_cast<uint64_t>(size - 1)) + 1) / 2 : 1) {
  for (uint64_t round = 0; round < kRounds; ++round) {
    round_keys_[round] = RandomBits({seed, epoch, round});
  }
}

int64_t Permutation::operator()(int64_t position) const noexcept {
  uint64_t value = static_cast<uint64_t>(position);
  do {
    value = Encrypt(value);
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

// Each round maps (left, right) to (right, left ^ F(right)), which can be undone whatever F is.
uint64_t Permutation::Encrypt(uint64_t value) const noexcept {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t key : round_keys_) {
    const uint64_t mixed = MixBits(right ^ key) & mask;
    left ^= mixed;
    std::swap(left, right);
  }
  return (left << half_bits_) | right;
}

}  // namespace engine::data
