// The IDX format of the MNIST files (LeCun, Cortes, Burges: The MNIST database), plain or gzip.
//
//   file   = 0x00 0x00 type rank extent{rank} value{product of the extents}
//   type   = 0x08, unsigned bytes: the only one read here
//   rank   = one byte
//   extent = uint32, big-endian
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/status.h"
#include "engine/tensor.h"

namespace engine::mnist {

struct IdxArray {
  Shape shape;
  std::vector<uint8_t> values;

  static int64_t HeaderBytes(int32_t dimensions) { return 4 + 4 * int64_t{dimensions}; }
};

// Reads an array of `dimensions` (1 .. 4) dimensions. Whether the file is gzip is told by its
// content. kMissingInput when it cannot be opened; kBadData, with file and offset (of the
// uncompressed content), for anything that is not exactly the grammar above. Memory grows with what
// the file holds, never with what it says.
Result<IdxArray> ReadIdx(const std::string& path, int32_t dimensions);

}  // namespace engine::mnist
