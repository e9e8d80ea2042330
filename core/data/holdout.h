// The share of the data that is held out for evaluation.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/status.h"

namespace engine {

// `key` is the name of the share in the configuration.
inline Status CheckHoldout(const char* key, double share) {
  if (share >= 0 && share < 1) return {};
  return Status::Error(StatusCode::kConfig, "%s is %g; it must be at least 0 and less than 1", key,
                       share);
}

// How many of `size`, to the nearest.
inline int64_t HoldoutCount(int64_t size, double share) {
  return std::llround(static_cast<double>(size) * share);
}

}  // namespace engine
