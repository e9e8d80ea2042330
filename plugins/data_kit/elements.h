// Numbers as files store them: IDX (big-endian), NumPy and token files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace engine::data_kit {

struct ElementType {
  enum class Kind : uint8_t { kUnsigned, kSigned, kFloat };
  Kind kind = Kind::kUnsigned;
  uint8_t size_bytes = 1;  // 1, 2, 4 or 8; of kFloat 2, 4 or 8
  bool big_endian = false;

  bool operator==(const ElementType&) const = default;
  bool is_integer() const { return kind != Kind::kFloat; }
};

// Writes `count` elements, dense from `bytes` on, which need not be aligned, as Out: float, double
// or int64_t. A uint64 of 2^63 or more is negative as int64_t; floats become int64_t where they can
// be.
template <typename Out>
void ReadElements(ElementType type, const uint8_t* bytes, int64_t count, Out* out);

// An array of a file.
struct NumberArray {
  std::string name;  // for messages: the file, and in .npz the array
  ElementType type;
  std::vector<int64_t> shape;         // at least one extent
  std::span<const uint8_t> elements;  // exactly those of the shape, in C order
  // Keeps them: the mapped file, or what came out of a compressed one.
  std::shared_ptr<const void> memory;

  int64_t rows() const { return shape[0]; }
  int64_t row_count() const {  // elements of a row
    int64_t count = 1;
    for (size_t i = 1; i < shape.size(); ++i) count *= shape[i];
    return count;
  }
  // Writes `count` elements of a row, from element `first` of it on.
  template <typename Out>
  void Read(int64_t row, int64_t first, int64_t count, Out* out) const {
    const int64_t begin = row * row_count() + first;
    ReadElements(type, elements.data() + begin * type.size_bytes, count, out);
  }
};

}  // namespace engine::data_kit
