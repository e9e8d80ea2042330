#include "app/weights/onnx_weights.h"

#include <google/protobuf/io/coded_stream.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/tensor.h"
#include "kit/file.h"

namespace engine::weights {
namespace {

using onnx::TensorProto;

struct Type {
  int32_t number;
  Element element;
  size_t element_bytes;
};
constexpr Type kTypes[] = {{TensorProto::FLOAT, Element::kFloat32, 4},
                           {TensorProto::DOUBLE, Element::kFloat64, 8},
                           {TensorProto::FLOAT16, Element::kFloat16, 2},
                           {TensorProto::BFLOAT16, Element::kBFloat16, 2}};

class OnnxWeights final : public WeightFile {
 public:
  OnnxWeights(std::string path, kit::MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  Status Read() {
    const std::span<const uint8_t> bytes = file_.bytes();
    // Protobuf reads no more than 2 GiB.
    const size_t readable = std::min<size_t>(bytes.size(), std::numeric_limits<int>::max());
    google::protobuf::io::CodedInputStream stream(bytes.data(), static_cast<int>(readable));
    if (readable < bytes.size() || !model_.ParseFromCodedStream(&stream) || !model_.has_graph()) {
      return Status::Error(
          StatusCode::kBadData,
          "%s: no ONNX model, or a damaged one: it cannot be read on at byte %d of "
          "%zu",
          path_.c_str(), stream.CurrentPosition(), bytes.size());
    }
    for (const TensorProto& tensor : model_.graph().initializer()) {
      ENGINE_RETURN_IF_ERROR(
          Add(tensor).WithContext("%s: initialiser '%s'", path_.c_str(), tensor.name().c_str()));
    }
    return {};
  }

 private:
  Status Add(const TensorProto& tensor) {
    if (tensor.dims_size() > kMaxDims) return {};  // as no parameter
    StoredTensor stored{.name = tensor.name(), .shape = {}};
    uint64_t elements = 1;
    for (const int64_t extent : tensor.dims()) {
      stored.shape.dims[stored.shape.ndim++] = extent;
      if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements) ||
          elements >> 40 != 0) {
        return Status::Error(StatusCode::kBadData, "its shape cannot be");
      }
    }
    const auto* const type = std::ranges::find(kTypes, tensor.data_type(), &Type::number);
    if (type != std::end(kTypes)) {
      ENGINE_ASSIGN_OR_RETURN(const std::span<const uint8_t> bytes, BytesOf(tensor));
      if (bytes.size() != elements * type->element_bytes) {
        return Status::Error(StatusCode::kBadData, "%zu bytes are there, and its shape needs %zu",
                             bytes.size(), static_cast<size_t>(elements * type->element_bytes));
      }
      stored.element = type->element;
      stored.data = bytes.data();
    }
    tensors_.push_back(std::move(stored));
    return {};
  }

  // As bytes, in a list of their type, those of 16 bits as integers of 32, or in another file.
  Result<std::span<const uint8_t>> BytesOf(const TensorProto& tensor) {
    if (tensor.data_location() == TensorProto::EXTERNAL) return External(tensor);
    const auto bytes = [](const auto& list) {
      return std::span(reinterpret_cast<const uint8_t*>(list.data()),
                       static_cast<size_t>(list.size()) * sizeof(*list.data()));
    };
    if (tensor.has_raw_data()) return bytes(tensor.raw_data());
    if (tensor.data_type() == TensorProto::FLOAT) return bytes(tensor.float_data());
    if (tensor.data_type() == TensorProto::DOUBLE) return bytes(tensor.double_data());
    return bytes(narrow_.emplace_back(tensor.int32_data().begin(), tensor.int32_data().end()));
  }

  // In a file of the model's own folder: a model that came from elsewhere reads no other one.
  Result<std::span<const uint8_t>> External(const TensorProto& tensor) {
    std::string location;
    uint64_t offset = 0, length = std::numeric_limits<uint64_t>::max();
    for (const auto& entry : tensor.external_data()) {
      const std::string& value = entry.value();
      if (entry.key() == "location") location = value;
      for (const auto& [key, number] : {std::pair{"offset", &offset}, {"length", &length}}) {
        if (entry.key() == key) std::from_chars(value.data(), value.data() + value.size(), *number);
      }
    }
    if (location.empty() || location.find('/') != std::string::npos) {
      return Status::Error(StatusCode::kBadData,
                           "its data would be in '%s', which is no file beside "
                           "the model",
                           location.c_str());
    }
    auto found = beside_.find(location);
    if (found == beside_.end()) {
      const std::string folder = path_.substr(0, path_.rfind('/') + 1);  // npos + 1 is 0
      ENGINE_ASSIGN_OR_RETURN(kit::MappedFile file, kit::MappedFile::Open(folder + location));
      found = beside_.emplace(location, std::move(file)).first;
    }
    const std::span<const uint8_t> all = found->second.bytes();
    if (offset > all.size()) {
      return Status::Error(StatusCode::kBadData,
                           "its data would begin at byte %zu of '%s', which has "
                           "%zu",
                           static_cast<size_t>(offset), location.c_str(), all.size());
    }
    return all.subspan(offset, std::min<uint64_t>(length, all.size() - offset));
  }

  const std::string path_;
  const kit::MappedFile file_;
  onnx::ModelProto model_;
  std::list<std::vector<uint16_t>> narrow_;        // 16-bit elements that the file has as integers
  std::map<std::string, kit::MappedFile> beside_;  // by name
};

}  // namespace

Result<std::unique_ptr<WeightFile>> OpenOnnxWeights(const std::string& path) {
  ENGINE_ASSIGN_OR_RETURN(kit::MappedFile file, kit::MappedFile::Open(path));
  auto weights = std::make_unique<OnnxWeights>(path, std::move(file));
  ENGINE_RETURN_IF_ERROR(weights->Read());
  return std::unique_ptr<WeightFile>(std::move(weights));
}

}  // namespace engine::weights
