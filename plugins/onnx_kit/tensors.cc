#include "onnx_kit/tensors.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <utility>

namespace engine::onnx_kit {
namespace {

using ::onnx::TensorProto;

// The file stands in the folder of the model or below it: a model that came from elsewhere reads no
// other one.
Result<Elements> ReadBeside(const TensorProto& tensor, const std::string& path, size_t size) {
  std::filesystem::path location;
  uint64_t offset = 0, length = size;
  for (const auto& entry : tensor.external_data()) {
    const std::string& value = entry.value();
    if (entry.key() == "location") location = std::filesystem::path(value).lexically_normal();
    for (const auto& [key, number] : {std::pair{"offset", &offset}, {"length", &length}}) {
      if (entry.key() == key) std::from_chars(value.data(), value.data() + value.size(), *number);
    }
  }
  if (location.empty() || location.is_absolute() || *location.begin() == "..") {
    return Status::Error(StatusCode::kBadData,
                         "its data would be in '%s', outside of the folder of the model",
                         location.c_str());
  }
  ENGINE_ASSIGN_OR_RETURN(
      kit::MappedFile file,
      kit::MappedFile::Open(std::filesystem::path(path).parent_path() / location));
  Elements elements;
  elements.beside.emplace(std::move(file));
  const std::span<const uint8_t> all = elements.beside->bytes();
  if (offset > all.size() || all.size() - offset < size || length != size) {
    return Status::Error(
        StatusCode::kBadData,
        "its %zu bytes would lie at byte %zu of '%s', which has %zu; copy that file again", size,
        static_cast<size_t>(offset), location.c_str(), all.size());
  }
  elements.bytes = all.subspan(offset, size);
  return elements;
}

// As bytes, or in the list of their type; narrow ones are in a list of wider integers.
Elements ReadInside(const TensorProto& tensor) {
  Elements elements;
  const auto view = [&](const auto& list) {
    elements.bytes = {reinterpret_cast<const uint8_t*>(list.data()),
                      static_cast<size_t>(list.size()) * sizeof(*list.data())};
  };
  if (tensor.has_raw_data()) {
    view(tensor.raw_data());
  } else if (tensor.data_type() == TensorProto::FLOAT) {
    view(tensor.float_data());
  } else if (tensor.data_type() == TensorProto::DOUBLE) {
    view(tensor.double_data());
  } else if (tensor.data_type() == TensorProto::INT64) {
    view(tensor.int64_data());
  } else if (tensor.data_type() == TensorProto::INT32) {
    view(tensor.int32_data());
  } else {
    for (const int32_t wide : tensor.int32_data()) {
      elements.narrow.push_back(static_cast<uint8_t>(wide));
      if (BytesOfElement(tensor.data_type()) == 2) {
        elements.narrow.push_back(static_cast<uint8_t>(wide >> 8));
      }
    }
    view(elements.narrow);
  }
  return elements;
}

Result<Elements> Read(const TensorProto& tensor, const std::string& path) {
  size_t size = BytesOfElement(tensor.data_type());
  if (size == 0) {
    return Status::Error(StatusCode::kBadData, "its elements are of a type that is no number");
  }
  for (const int64_t extent : tensor.dims()) {
    if (extent < 0 || __builtin_mul_overflow(size, static_cast<size_t>(extent), &size)) {
      return Status::Error(StatusCode::kBadData, "its shape cannot be");
    }
  }
  if (tensor.data_location() == TensorProto::EXTERNAL) return ReadBeside(tensor, path, size);
  Elements elements = ReadInside(tensor);
  if (elements.bytes.size() == size) return elements;
  return Status::Error(StatusCode::kBadData, "%zu bytes are there, and its shape needs %zu",
                       elements.bytes.size(), size);
}

}  // namespace

Result<::onnx::ModelProto> ReadModel(const std::string& path) {
  ENGINE_ASSIGN_OR_RETURN(const kit::MappedFile file, kit::MappedFile::Open(path));
  const std::span<const uint8_t> bytes = file.bytes();
  // Protobuf reads no more than 2 GiB.
  const size_t readable = std::min<size_t>(bytes.size(), std::numeric_limits<int>::max());
  google::protobuf::io::CodedInputStream stream(bytes.data(), static_cast<int>(readable));
  ::onnx::ModelProto model;
  if (readable == bytes.size() && model.ParseFromCodedStream(&stream) && model.has_graph()) {
    return model;
  }
  return Status::Error(
      StatusCode::kBadData,
      "%s: no ONNX model, or a damaged one: it cannot be read on at byte %d of %zu", path.c_str(),
      stream.CurrentPosition(), bytes.size());
}

size_t BytesOfElement(int32_t type) {
  switch (type) {
    case TensorProto::DOUBLE:
    case TensorProto::INT64:
      return 8;
    case TensorProto::FLOAT:
    case TensorProto::INT32:
      return 4;
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16:
    case TensorProto::INT16:
    case TensorProto::UINT16:
      return 2;
    case TensorProto::INT8:
    case TensorProto::UINT8:
    case TensorProto::BOOL:
      return 1;
    default:
      return 0;
  }
}

bool IsFloat(int64_t type) {
  return type == TensorProto::FLOAT || type == TensorProto::DOUBLE ||
         type == TensorProto::FLOAT16 || type == TensorProto::BFLOAT16;
}

Result<Elements> ReadElements(const TensorProto& tensor, const std::string& path) {
  auto elements = Read(tensor, path);
  if (elements.ok()) return elements;
  return elements.status().WithContext("tensor '%s'", tensor.name().c_str());
}

}  // namespace engine::onnx_kit
