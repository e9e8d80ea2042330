// A random order of any number of things, without a table.
#pragma once

#include <array>
#include <cstdint>

namespace engine::data {

// The numbers [0, size) in an order that depends on the keys only. A Feistel network permutes the
// numbers of 2h bits, where 2h is the smallest even width that holds `size`; a result outside of
// [0, size) is permuted again until it is inside ("cycle walking": Black, Rogaway: Ciphers with
// arbitrary finite domains, 2002). The walk returns to the set it started in, so it ends, after
// fewer than four rounds on average since 4^h <= 4 * size; and it is one-to-one since it can be
// walked backwards.
class Permutation {
 public:
  // size in [0, 2^62].
  Permutation(int64_t size, uint64_t seed, uint64_t epoch) noexcept;

  // position in [0, size).
  int64_t operator()(int64_t position) const noexcept;

 private:
  static constexpr int kRounds = 8;
  uint64_t Encrypt(uint64_t value) const noexcept;

  uint64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> round_keys_;
};

}  // namespace engine::data
