// An ONNX file and the elements of its tensors, in it and in files beside it.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/status.h"
#include "kit/file.h"

namespace engine::onnx_kit {

// kMissingInput; kBadData with the position at which the file cannot be read on.
Result<::onnx::ModelProto> ReadModel(const std::string& path);

// Of a TensorProto::DataType; 0 for one that is no number.
size_t BytesOfElement(int32_t type);

// The elements of a tensor, one after the other, perhaps not aligned.
struct Elements {
  std::span<const uint8_t> bytes;
  std::vector<uint8_t> narrow;            // what `bytes` are of, or
  std::optional<kit::MappedFile> beside;  // that, or the tensor itself
};

// Of a tensor in the file `path`; borrows it. As many as its shape says, so nobody allocates more than
// there is. kBadData with its name; kMissingInput for a file beside the model that is not there.
Result<Elements> ReadElements(const ::onnx::TensorProto& tensor, const std::string& path);

}  // namespace engine::onnx_kit
