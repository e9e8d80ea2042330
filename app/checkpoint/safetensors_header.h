// The header of a safetensors file, apart from any file.
//
//   file      = length header data
//   length    = uint64, little-endian: size of `header` in bytes, at most kMaxHeaderBytes
//   header    = JSON object, padded with spaces:
//               { "__metadata__": { KEY: STRING, ... },               optional
//                 NAME: { "dtype": DTYPE, "shape": [EXTENT, ...], "data_offsets": [BEGIN, END] },
//                 ... }
//   data      = bytes; BEGIN and END count from its start; the tensors cover it without gap or
//   overlap
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"
#include "engine/tensor.h"

namespace engine::checkpoint {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the bound of the format's own implementation
constexpr char kDigestKey[] = "digest";

struct TensorEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  uint64_t begin = 0;  // in the data
  uint64_t end = 0;
  std::string
      foreign;  // "F64": a type that the engine has no dtype for; then `dtype` means nothing
};

// What is said of types of the format that the engine has no dtype for: files of other programs may
// have tensors of them.
enum class ForeignTypes { kRefuse, kAccept };

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  // by position in the data
};

// Reads `text`, which stands before `data_bytes` of data. kBadData with a sentence for everything
// that the grammar above does not allow, a name or key that is there twice, more than kMaxDims
// extents, or a size that does not fit into 63 bits.
Result<SafetensorsHeader> ParseHeader(std::string_view text, uint64_t data_bytes,
                                      ForeignTypes foreign = ForeignTypes::kRefuse);

// The header in one fixed form: no white space, keys sorted, characters outside ASCII as they are.
// kInvalidArgument when a string is not UTF-8.
Result<std::string> FormatHeader(const SafetensorsHeader& header);

// What a digest of the file covers of the header: FormatHeader without the digest itself.
Result<std::string> DigestedHeader(SafetensorsHeader header);

// The number of bytes of a tensor with elements of `element_bytes`, or kBadData when it overflows 63
// bits or an extent is negative.
Result<uint64_t> CheckedBytes(const Shape& shape, size_t element_bytes);

}  // namespace engine::checkpoint
