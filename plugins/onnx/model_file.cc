#include "model_file.h"

#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "kit/file.h"
#include "kit/float16.h"

namespace engine::onnx {
namespace {

using proto::TensorProto;

constexpr int64_t kFirstOpset = 11, kLastOpset = 18;
const std::string kNone;

template <typename Element>
Element At(const uint8_t* bytes, size_t i) {
  Element element;
  std::memcpy(&element, bytes + i * sizeof element, sizeof element);
  return element;
}

size_t SizeOfElement(int32_t type) {
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

double Element(int32_t type, const uint8_t* bytes, size_t i) {
  switch (type) {
    case TensorProto::DOUBLE:
      return At<double>(bytes, i);
    case TensorProto::INT64:
      return static_cast<double>(At<int64_t>(bytes, i));
    case TensorProto::FLOAT:
      return At<float>(bytes, i);
    case TensorProto::INT32:
      return At<int32_t>(bytes, i);
    case TensorProto::FLOAT16:
      return kit::FromFloat16(At<uint16_t>(bytes, i));
    case TensorProto::BFLOAT16:
      return kit::FromBFloat16(At<uint16_t>(bytes, i));
    case TensorProto::INT16:
      return At<int16_t>(bytes, i);
    case TensorProto::UINT16:
      return At<uint16_t>(bytes, i);
    case TensorProto::INT8:
      return At<int8_t>(bytes, i);
    default:
      return At<uint8_t>(bytes, i);
  }
}

// What stands in typed fields in the place of raw bytes; -1 elements: none does.
std::pair<int64_t, double> TypedElement(const TensorProto& tensor, int i) {
  const auto at = [i](const auto& list, int64_t size) {
    return std::pair(size, i < size ? static_cast<double>(list.Get(i)) : 0.0);
  };
  if (tensor.float_data_size() > 0) return at(tensor.float_data(), tensor.float_data_size());
  if (tensor.double_data_size() > 0) return at(tensor.double_data(), tensor.double_data_size());
  if (tensor.int64_data_size() > 0) return at(tensor.int64_data(), tensor.int64_data_size());
  const auto [size, value] = at(tensor.int32_data(), tensor.int32_data_size());
  // Halves stand there as their bits.
  const auto bits = static_cast<uint16_t>(value);
  if (tensor.data_type() == TensorProto::FLOAT16) return {size, kit::FromFloat16(bits)};
  if (tensor.data_type() == TensorProto::BFLOAT16) return {size, kit::FromBFloat16(bits)};
  return {size, value};
}

// Where elements are: in typed fields, in raw bytes, or in a file beside this one, of which offset and
// length are given.
template <typename Out>
Status ReadAs(const TensorProto& tensor, const std::string& path, std::span<Out> values) {
  const auto wrong = [&](const char* what) {
    return Status::Error(StatusCode::kBadData, "%s: tensor '%s' %s", path.c_str(),
                         tensor.name().c_str(), what);
  };
  const size_t width = SizeOfElement(tensor.data_type());
  if (width == 0) return wrong("has elements of a type that is no number");
  const auto read = [&](std::span<const uint8_t> bytes) {
    if (bytes.size() != width * values.size())
      return wrong("has not as many elements as its shape");
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<Out>(Element(tensor.data_type(), bytes.data(), i));
    }
    return Status();
  };
  if (tensor.data_location() == TensorProto::EXTERNAL) {
    std::filesystem::path location;
    size_t offset = 0;
    for (const auto& entry : tensor.external_data()) {
      if (entry.key() == "location") location = entry.value();
      if (entry.key() == "offset") offset = std::strtoull(entry.value().c_str(), nullptr, 10);
    }
    // The file stands in the folder of the model or below it: a model names no other file.
    location = location.lexically_normal();
    if (location.empty() || location.is_absolute() || *location.begin() == "..") {
      return wrong("has external data outside of the folder of the model");
    }
    const std::string beside = (std::filesystem::path(path).parent_path() / location).string();
    ENGINE_ASSIGN_OR_RETURN(const kit::MappedFile mapped, kit::MappedFile::Open(beside));
    const size_t size = width * values.size();
    if (offset > mapped.bytes().size() || mapped.bytes().size() - offset < size) {
      return wrong("lies beyond the end of its external data; copy that file again");
    }
    return read(mapped.bytes().subspan(offset, size));
  }
  if (tensor.has_raw_data()) {
    const std::string& raw = tensor.raw_data();
    return read({reinterpret_cast<const uint8_t*>(raw.data()), raw.size()});
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const auto [size, value] = TypedElement(tensor, static_cast<int>(i));
    if (size != static_cast<int64_t>(values.size())) {
      return wrong("has not as many elements as its shape");
    }
    values[i] = static_cast<Out>(value);
  }
  return {};
}

}  // namespace

const std::string& Node::input(size_t i) const {
  return i < input_count() ? node_->input(static_cast<int>(i)) : kNone;
}

const std::string& Node::output(size_t i) const {
  return i < output_count() ? node_->output(static_cast<int>(i)) : kNone;
}

const proto::AttributeProto* Node::Find(std::string_view name) const {
  for (const proto::AttributeProto& attribute : node_->attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

int64_t Node::Int(std::string_view name, int64_t otherwise) const {
  const auto* const found = Find(name);
  return found != nullptr ? found->i() : otherwise;
}

double Node::Float(std::string_view name, double otherwise) const {
  const auto* const found = Find(name);
  return found != nullptr ? found->f() : otherwise;
}

std::string Node::Text(std::string_view name, const std::string& otherwise) const {
  const auto* const found = Find(name);
  return found != nullptr ? found->s() : otherwise;
}

Dims Node::Ints(std::string_view name, const Dims& otherwise) const {
  const auto* const found = Find(name);
  return found != nullptr ? Dims(found->ints().begin(), found->ints().end()) : otherwise;
}

Status Node::Error(StatusCode code, const char* format, ...) const {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return Status::Error(code, "node '%s' (%s): %s", name().c_str(), type().c_str(), text);
}

bool IsFloat(const TensorProto& tensor) {
  const int32_t type = tensor.data_type();
  return type == TensorProto::FLOAT || type == TensorProto::DOUBLE ||
         type == TensorProto::FLOAT16 || type == TensorProto::BFLOAT16;
}

Dims DimsOf(const TensorProto& tensor) {
  return {tensor.dims().begin(), tensor.dims().end()};
}

Result<std::unique_ptr<ModelFile>> ModelFile::Open(const std::string& path) {
  std::unique_ptr<ModelFile> file(new ModelFile(path));
  ENGINE_RETURN_IF_ERROR(file->Parse());
  return file;
}

Status ModelFile::Parse() {
  ENGINE_ASSIGN_OR_RETURN(const kit::MappedFile mapped, kit::MappedFile::Open(path_));
  const std::span<const uint8_t> bytes = mapped.bytes();
  const bool parsed = !bytes.empty() && bytes.size() <= INT_MAX &&
                      model_.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  if (!parsed || !model_.has_graph() || model_.graph().node_size() == 0) {
    return Status::Error(StatusCode::kBadData,
                         "%s: no ONNX model, or one that is cut off; write it again with "
                         "torch.onnx.export",
                         path_.c_str());
  }
  for (const auto& import : model_.opset_import()) {
    if (import.domain().empty() || import.domain() == "ai.onnx") opset_ = import.version();
  }
  if (opset_ < kFirstOpset || opset_ > kLastOpset) {
    return Status::Error(StatusCode::kUnsupported,
                         "%s: opset %lld; opsets %lld to %lld are known: export it with "
                         "opset_version=17",
                         path_.c_str(), static_cast<long long>(opset_),
                         static_cast<long long>(kFirstOpset), static_cast<long long>(kLastOpset));
  }
  for (const TensorProto& tensor : model_.graph().initializer()) {
    initializers_[tensor.name()] = &tensor;
  }
  return {};
}

const TensorProto* ModelFile::FindInitializer(const std::string& name) const {
  const auto found = initializers_.find(name);
  return found == initializers_.end() ? nullptr : found->second;
}

Status ModelFile::Read(const TensorProto& tensor, std::span<float> values) const {
  return ReadAs(tensor, path_, values);
}

Result<Tensor> ReadTensor(const TensorProto& tensor, const std::string& path) {
  Tensor read{.type = IsFloat(tensor)                           ? Tensor::Type::kFloat
                      : tensor.data_type() == TensorProto::BOOL ? Tensor::Type::kBool
                                                                : Tensor::Type::kInt,
              .dims = DimsOf(tensor)};
  int64_t count = 1;
  for (const int64_t extent : read.dims) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count) || count > INT_MAX) {
      return Status::Error(StatusCode::kBadData, "%s: tensor '%s' has an impossible shape",
                           path.c_str(), tensor.name().c_str());
    }
  }
  read.values.resize(static_cast<size_t>(count));
  ENGINE_RETURN_IF_ERROR(ReadAs(tensor, path, std::span(read.values)));
  return read;
}

}  // namespace engine::onnx
