#include "core/exec/initialize.h"

#include <cmath>
#include <numbers>
#include <string_view>

namespace engine {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that spreads every input bit.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t KeyOf(std::string_view name, uint64_t seed) {
  uint64_t key = Mix(seed);
  for (char c : name) key = Mix(key ^ static_cast<unsigned char>(c));
  return key;
}

// In (0, 1], from the upper 53 bits.
double Uniform(uint64_t key, uint64_t counter) {
  return (static_cast<double>(Mix(key ^ Mix(counter)) >> 11) + 1) * 0x1p-53;
}

}  // namespace

void Initialize(const Parameter& parameter, uint64_t seed, std::span<float> values) {
  const uint64_t key = KeyOf(parameter.name, seed);
  for (uint64_t i = 0; i < values.size(); ++i) {
    switch (parameter.initializer) {
      case Initializer::kZeros:
        values[i] = 0;
        break;
      case Initializer::kOnes:
        values[i] = 1;
        break;
      case Initializer::kNormal: {  // Box-Muller
        const double radius = std::sqrt(-2 * std::log(Uniform(key, 2 * i)));
        const double angle = 2 * std::numbers::pi * Uniform(key, 2 * i + 1);
        values[i] = static_cast<float>(parameter.scale * radius * std::cos(angle));
        break;
      }
      case Initializer::kUniform:
        values[i] = static_cast<float>(parameter.scale * (2 * Uniform(key, i) - 1));
        break;
    }
  }
}

}  // namespace engine
