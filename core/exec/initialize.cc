// Random numbers are a function of a key and a counter, not the state of a generator: a parameter
// has the same values whatever was made before it, on every rank and for any number of ranks.
#include "core/exec/initialize.h"

#include <cmath>
#include <numbers>

#include "core/base/hash.h"

namespace engine::exec {
namespace {

// In (0, 1], from the upper 53 bits.
double Uniform(uint64_t key, uint64_t counter) {
  return (static_cast<double>(base::Mix(key ^ base::Mix(counter)) >> 11) + 1) * 0x1p-53;
}

}  // namespace

void Initialize(const graph::Parameter& parameter, uint64_t seed, std::span<float> values) {
  const uint64_t key = base::HashOf(parameter.name, seed);
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

}  // namespace engine::exec
