// Compiled with -mavx2 (CMakeLists.txt): nothing may be in here but the loops of xxHash, which have
// internal linkage, or the linker could give these instructions to other files.
#include "app/run/digest_avx2.h"

#include "kit/digest.h"

namespace engine::run {

uint64_t Digest64WithAvx2(const void* data, size_t size_bytes) noexcept {
  return kit::Digest64(data, size_bytes);
}

}  // namespace engine::run
