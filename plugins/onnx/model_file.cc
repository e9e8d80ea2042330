#include "model_file.h"

#include <cstdio>

#include "onnx_kit/tensors.h"

namespace engine::onnx {
namespace {

using proto::TensorProto;

constexpr int64_t kFirstOpset = 11, kLastOpset = 18;
const std::string kNone;

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

Status Node::Error(StatusCode code, const char* format, va_list args) const {
  char text[512];
  vsnprintf(text, sizeof text, format, args);
  return Status::Error(code, "node '%s' (%s): %s", name().c_str(), type().c_str(), text);
}

Status Node::Unsupported(const char* format, ...) const {
  va_list args;
  va_start(args, format);
  const Status status = Error(StatusCode::kPlugin, format, args);
  va_end(args);
  return status;
}

Status Node::Misfit(const char* format, ...) const {
  va_list args;
  va_start(args, format);
  const Status status = Error(StatusCode::kConfig, format, args);
  va_end(args);
  return status;
}

Status Node::Damaged(const char* format, ...) const {
  va_list args;
  va_start(args, format);
  const Status status = Error(StatusCode::kBadData, format, args);
  va_end(args);
  return status;
}

Tensor::Type TypeOf(int64_t data_type) {
  if (onnx_kit::IsFloat(data_type)) return Tensor::Type::kFloat;
  return data_type == TensorProto::BOOL ? Tensor::Type::kBool : Tensor::Type::kInt;
}

Dims DimsOf(const TensorProto& tensor) {
  return {tensor.dims().begin(), tensor.dims().end()};
}

Result<std::unique_ptr<ModelFile>> ModelFile::Open(const std::string& path) {
  std::unique_ptr<ModelFile> file(new ModelFile(path));
  ENGINE_ASSIGN_OR_RETURN(file->model_, onnx_kit::ReadModel(path));
  for (const auto& import : file->model_.opset_import()) {
    if (import.domain().empty() || import.domain() == "ai.onnx") file->opset_ = import.version();
  }
  if (file->opset_ < kFirstOpset || file->opset_ > kLastOpset) {
    return Status::Error(StatusCode::kUnsupported,
                         "%s: opset %lld; opsets %lld to %lld are known: export it with "
                         "opset_version=17",
                         path.c_str(), static_cast<long long>(file->opset_),
                         static_cast<long long>(kFirstOpset), static_cast<long long>(kLastOpset));
  }
  for (const TensorProto& tensor : file->graph().initializer()) {
    file->initializers_[tensor.name()] = &tensor;
  }
  return file;
}

const TensorProto* ModelFile::FindInitializer(const std::string& name) const {
  const auto found = initializers_.find(name);
  return found == initializers_.end() ? nullptr : found->second;
}

Status ModelFile::Read(const TensorProto& tensor, std::span<float> values) const {
  const auto elements = onnx_kit::ReadElements(tensor, path_);
  if (!elements.ok()) return elements.status().WithContext("%s", path_.c_str());
  const size_t count = elements->bytes.size() / onnx_kit::BytesOfElement(tensor.data_type());
  if (count != values.size()) {
    return Status::Error(StatusCode::kBadData, "%s: tensor '%s' has %zu elements, and not %zu",
                         path_.c_str(), tensor.name().c_str(), count, values.size());
  }
  onnx_kit::Convert(tensor.data_type(), elements->bytes.data(), values);
  return {};
}

Result<Tensor> ReadTensor(const TensorProto& tensor, const std::string& path) {
  ENGINE_ASSIGN_OR_RETURN(const auto elements, onnx_kit::ReadElements(tensor, path));
  Tensor read{TypeOf(tensor.data_type()), DimsOf(tensor), {}};
  read.values.resize(static_cast<size_t>(read.count()));
  onnx_kit::Convert(tensor.data_type(), elements.bytes.data(), std::span(read.values));
  return read;
}

}  // namespace engine::onnx
