// Numbers in memory, whatever their type there.
#pragma once

#include <cstdint>
#include <cstring>

#include "engine/tensor.h"
#include "kit/float16.h"

namespace engine::conform {

using kit::FromBFloat16;
using kit::ToBFloat16;

template <typename T>
T ReadAs(const void* data, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

inline double ReadElement(DType dtype, const void* data, size_t index) {
  switch (dtype) {
    case DType::kFloat32:
      return ReadAs<float>(data, index);
    case DType::kInt32:
      return ReadAs<int32_t>(data, index);
    case DType::kUint8:
      return ReadAs<uint8_t>(data, index);
    case DType::kBFloat16:
      return FromBFloat16(ReadAs<uint16_t>(data, index));
    case DType::kFloat16:
      return kit::FromFloat16(ReadAs<uint16_t>(data, index));
  }
  return 0;
}

template <typename T>
void WriteAs(void* data, size_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * sizeof(T), &value, sizeof(T));
}

// Rounded to what the type holds; of integers, cut.
inline void WriteElement(DType dtype, void* data, size_t index, double value) {
  switch (dtype) {
    case DType::kFloat32:
      return WriteAs(data, index, static_cast<float>(value));
    case DType::kInt32:
      return WriteAs(data, index, static_cast<int32_t>(value));
    case DType::kUint8:
      return WriteAs(data, index, static_cast<uint8_t>(value));
    case DType::kBFloat16:
      return WriteAs(data, index, ToBFloat16(static_cast<float>(value)));
    case DType::kFloat16:
      return WriteAs(data, index, kit::ToFloat16(static_cast<float>(value)));
  }
}

}  // namespace engine::conform
