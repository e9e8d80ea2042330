// The minor version of the ABI. Not part of the fingerprint: a new extension (Object::Query) raises
// it, and plugins that were built before go on loading.
#pragma once

#include <cstdint>

namespace engine {

constexpr uint16_t kAbiMinor = 0;

}  // namespace engine
