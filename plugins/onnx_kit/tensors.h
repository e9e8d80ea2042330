// An ONNX file and the elements of its tensors, in it and in files beside it.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/status.h"
#include "kit/file.h"
#include "kit/float16.h"

namespace engine::onnx_kit {

// kMissingInput; kBadData with the position at which the file cannot be read on.
Result<::onnx::ModelProto> ReadModel(const std::string& path);

// Of a TensorProto::DataType; 0 for one that is no number.
size_t BytesOfElement(int32_t type);
// Whether its numbers have fractions.
bool IsFloat(int64_t type);

// The elements of a tensor, one after the other, perhaps not aligned.
struct Elements {
  std::span<const uint8_t> bytes;
  std::vector<uint8_t> narrow;            // what `bytes` are of, or
  std::optional<kit::MappedFile> beside;  // that, or the tensor itself
};

// Of a tensor in the file `path`; borrows it. As many as its shape says, so nobody allocates more than
// there is. kBadData with its name; kMissingInput for a file beside the model that is not there.
Result<Elements> ReadElements(const ::onnx::TensorProto& tensor, const std::string& path);

// The elements of a type that is a number, by way of double, which all of them fit in but the
// largest integers.
template <typename Out>
void Convert(int32_t type, const void* elements, std::span<Out> values) {
  using ::onnx::TensorProto;
  const auto each = [&](auto element, const auto& number) {
    const auto* at = static_cast<const uint8_t*>(elements);
    for (Out& value : values) {
      std::memcpy(&element, at, sizeof element);
      at += sizeof element;
      value = static_cast<Out>(static_cast<double>(number(element)));
    }
  };
  constexpr std::identity kSame;
  switch (type) {
    case TensorProto::DOUBLE:
      return each(double{}, kSame);
    case TensorProto::INT64:
      return each(int64_t{}, kSame);
    case TensorProto::FLOAT:
      return each(float{}, kSame);
    case TensorProto::INT32:
      return each(int32_t{}, kSame);
    case TensorProto::FLOAT16:
      return each(uint16_t{}, [](uint16_t x) { return kit::FromFloat16(x); });
    case TensorProto::BFLOAT16:
      return each(uint16_t{}, [](uint16_t x) { return kit::FromBFloat16(x); });
    case TensorProto::INT16:
      return each(int16_t{}, kSame);
    case TensorProto::UINT16:
      return each(uint16_t{}, kSame);
    case TensorProto::INT8:
      return each(int8_t{}, kSame);
    default:
      return each(uint8_t{}, kSame);
  }
}

}  // namespace engine::onnx_kit
