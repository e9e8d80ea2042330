// The IDX format of the MNIST files (LeCun, Cortes, Burges: The MNIST database), plain or gzip.
//
//   file   = 0x00 0x00 type rank extent{rank} value{product of the extents}
//   type   = 0x08 uint8, 0x09 int8, 0x0b int16, 0x0c int32, 0x0d float32, 0x0e float64
//   rank   = one byte
//   extent = uint32
//
// All of it is big-endian.
#pragma once

#include <cstdint>
#include <string>

#include "data_kit/elements.h"
#include "engine/status.h"

namespace engine::mnist {

constexpr int64_t HeaderBytes(int64_t dimensions) {
  return 4 + 4 * dimensions;
}

// Reads an array of `least` to `most` dimensions, of 1 to 4. Whether the file is gzip is told by
// its content; a plain one is mapped. kMissingInput when it cannot be opened; kBadData, with file
// and offset (of the uncompressed content), for anything that is not exactly the grammar above.
Result<data_kit::NumberArray> ReadIdx(const std::string& path, int32_t least, int32_t most);

}  // namespace engine::mnist
