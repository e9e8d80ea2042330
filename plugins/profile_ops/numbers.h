// The numbers that a profile layer makes up: functions of seed, layer, step and position, so that
// every run and every rank can be checked against them.
#pragma once

#include <cstdint>

#include "engine/dataset.h"

namespace engine::profile_ops {

constexpr uint64_t Hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d = 0) noexcept {
  return RandomBits({a, b, c, d});
}

// Gradient of parameter `i` for one sample: a whole number from -8 to 7, so that sums over samples
// and ranks are exact in any order. `key` is Hash(seed, layer, step).
constexpr float GradientAt(uint32_t key, uint32_t i) noexcept {
  return static_cast<float>(static_cast<int32_t>((i * 2654435761u + key) >> 28) - 8);
}

// In [-1, 1).
constexpr double Symmetric(uint64_t hash) noexcept {
  return static_cast<double>(hash >> 11) * 0x1p-52 - 1.0;
}

}  // namespace engine::profile_ops
