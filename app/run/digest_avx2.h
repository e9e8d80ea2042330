// kit::Digest64 in the instructions of AVX2, three times as fast: for whoever has found that they are
// there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace engine::run {

uint64_t Digest64WithAvx2(const void* data, size_t size_bytes) noexcept;

}  // namespace engine::run
