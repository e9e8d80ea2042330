// An ONNX file: its nodes, and the tensors in it and beside it.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdarg>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/status.h"
#include "tensor.h"

namespace engine::onnx {

namespace proto = ::onnx;

// A node as handlers see it. Borrows the file.
class Node {
 public:
  Node(const proto::NodeProto& node, int64_t opset)
      : node_(&node),
        type_(IsStandard() ? node.op_type() : node.domain() + "::" + node.op_type()),
        opset_(opset) {}

  // With its domain, unless that is ONNX's own.
  const std::string& type() const { return type_; }
  bool IsStandard() const { return node_->domain().empty() || node_->domain() == "ai.onnx"; }
  const proto::NodeProto& proto() const { return *node_; }
  int64_t opset() const { return opset_; }  // of the default domain
  // The node's own name, or that of what it gives.
  const std::string& name() const { return node_->name().empty() ? output(0) : node_->name(); }
  size_t input_count() const { return static_cast<size_t>(node_->input_size()); }
  size_t output_count() const { return static_cast<size_t>(node_->output_size()); }
  // "" where an optional one is left out.
  const std::string& input(size_t i) const;
  const std::string& output(size_t i) const;
  bool HasInput(size_t i) const { return !input(i).empty(); }

  // Attributes, or what holds where there is none.
  const proto::AttributeProto* Find(std::string_view name) const;
  int64_t Int(std::string_view name, int64_t otherwise) const {
    const auto* const found = Find(name);
    return found != nullptr ? found->i() : otherwise;
  }
  double Float(std::string_view name, double otherwise) const {
    const auto* const found = Find(name);
    return found != nullptr ? found->f() : otherwise;
  }
  std::string Text(std::string_view name, const std::string& otherwise) const {
    const auto* const found = Find(name);
    return found != nullptr ? found->s() : otherwise;
  }
  Dims Ints(std::string_view name, const Dims& otherwise = {}) const {
    const auto* const found = Find(name);
    return found != nullptr ? Dims(found->ints().begin(), found->ints().end()) : otherwise;
  }

  // Errors that begin with the node's name and type. kPlugin: what no op of the engine does.
  __attribute__((format(printf, 2, 3))) Status Unsupported(const char* format, ...) const;
  // kConfig: the data has another shape than the model was exported for.
  __attribute__((format(printf, 2, 3))) Status Misfit(const char* format, ...) const;
  // kBadData.
  __attribute__((format(printf, 2, 3))) Status Damaged(const char* format, ...) const;

 private:
  Status Error(StatusCode code, const char* format, va_list args) const;

  const proto::NodeProto* node_;
  std::string type_;
  int64_t opset_;
};

class ModelFile {
 public:
  // As onnx_kit::ReadModel; kUnsupported for an opset that this plugin does not know.
  static Result<std::unique_ptr<ModelFile>> Open(const std::string& path);

  const proto::GraphProto& graph() const { return model_.graph(); }
  int64_t opset() const { return opset_; }
  const std::string& path() const { return path_; }
  const proto::TensorProto* FindInitializer(const std::string& name) const;

  // The elements of a tensor, whatever their type. As onnx_kit::ReadElements.
  Status Read(const proto::TensorProto& tensor, std::span<float> values) const;

 private:
  explicit ModelFile(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  proto::ModelProto model_;
  int64_t opset_ = 0;
  std::map<std::string, const proto::TensorProto*> initializers_;
};

// As Read, of one in the file `path`.
Result<Tensor> ReadTensor(const proto::TensorProto& tensor, const std::string& path);
Tensor::Type TypeOf(int64_t data_type);
inline bool IsFloat(int64_t data_type) {
  return TypeOf(data_type) == Tensor::Type::kFloat;
}
Dims DimsOf(const proto::TensorProto& tensor);

}  // namespace engine::onnx
