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
#include <memory>
#include <span>
#include <string>

#include "data_kit/elements.h"
#include "engine/status.h"
#include "engine/tensor.h"

namespace engine::mnist {

struct IdxArray {
  data_kit::ElementType type;
  Shape shape;
  std::span<const uint8_t> values;     // exactly those of the shape
  std::shared_ptr<const void> memory;  // has them: the mapped file, or what came out of gzip

  // Writes the values of row `row`, which has `count` of them.
  template <typename Out>
  void ReadRow(int64_t row, int64_t count, Out* out) const {
    const uint8_t* const from = values.data() + row * count * type.size_bytes;
    data_kit::ReadElements(type, from, count, out);
  }
  static int64_t HeaderBytes(int32_t dimensions) { return 4 + 4 * int64_t{dimensions}; }
};

// Reads an array of `least` to `most` dimensions, of 1 to 4. Whether the file is gzip is told by
// its content; a plain one is mapped. kMissingInput when it cannot be opened; kBadData, with file
// and offset (of the uncompressed content), for anything that is not exactly the grammar above.
Result<IdxArray> ReadIdx(const std::string& path, int32_t least, int32_t most);

}  // namespace engine::mnist
