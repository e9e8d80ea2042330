// The minor version of the ABI. What is added at the end of a struct or of an interface, and a new
// extension, raise it; plugins that were built before go on loading.
#pragma once

#include <cstdint>

namespace engine {

constexpr uint16_t kAbiMinor = 2;

}  // namespace engine
