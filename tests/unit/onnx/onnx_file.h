// Files of small graphs, written with the schema: no Python.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace engine::test {

using Extents = std::vector<int64_t>;

class OnnxFile {
 public:
  OnnxFile() {
    model_.set_ir_version(8);
    model_.add_opset_import()->set_version(17);
    model_.mutable_graph()->set_name("test");
  }

  ::onnx::ModelProto& model() { return model_; }
  ::onnx::GraphProto& graph() { return *model_.mutable_graph(); }

  // An extent of 0 in front: any batch.
  OnnxFile& Input(const std::string& name, const Extents& shape,
                  ::onnx::TensorProto::DataType type = ::onnx::TensorProto::FLOAT) {
    auto* const input = graph().add_input();
    input->set_name(name);
    auto* const tensor = input->mutable_type()->mutable_tensor_type();
    tensor->set_elem_type(type);
    for (const int64_t extent : shape) {
      auto* const dim = tensor->mutable_shape()->add_dim();
      if (extent > 0) {
        dim->set_dim_value(extent);
      } else {
        dim->set_dim_param("batch");
      }
    }
    return *this;
  }
  OnnxFile& Output(const std::string& name) {
    graph().add_output()->set_name(name);
    return *this;
  }
  // Element i has the value values[i % size].
  OnnxFile& Floats(const std::string& name, const Extents& shape, std::vector<float> values) {
    auto* const tensor = graph().add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(::onnx::TensorProto::FLOAT);
    size_t count = 1;
    for (const int64_t extent : shape) {
      tensor->add_dims(extent);
      count *= static_cast<size_t>(extent);
    }
    for (size_t i = 0; i < count; ++i) tensor->add_float_data(values[i % values.size()]);
    return *this;
  }
  OnnxFile& Ints(const std::string& name, const Extents& values) {
    auto* const tensor = graph().add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(::onnx::TensorProto::INT64);
    tensor->add_dims(static_cast<int64_t>(values.size()));
    for (const int64_t value : values) tensor->add_int64_data(value);
    return *this;
  }
  // The last node's attributes follow it. Its output has the name of the node, if it has one output.
  OnnxFile& Node(const std::string& type, const std::string& name,
                 const std::vector<std::string>& inputs,
                 const std::vector<std::string>& outputs = {}) {
    node_ = graph().add_node();
    node_->set_op_type(type);
    node_->set_name(name);
    for (const std::string& input : inputs) node_->add_input(input);
    for (const std::string& output : outputs) node_->add_output(output);
    if (outputs.empty()) node_->add_output(name);
    return *this;
  }
  OnnxFile& Int(const std::string& name, int64_t value) {
    Attribute(name, ::onnx::AttributeProto::INT)->set_i(value);
    return *this;
  }
  OnnxFile& Float(const std::string& name, float value) {
    Attribute(name, ::onnx::AttributeProto::FLOAT)->set_f(value);
    return *this;
  }
  OnnxFile& Text(const std::string& name, const std::string& value) {
    Attribute(name, ::onnx::AttributeProto::STRING)->set_s(value);
    return *this;
  }
  OnnxFile& List(const std::string& name, const Extents& values) {
    auto* const attribute = Attribute(name, ::onnx::AttributeProto::INTS);
    for (const int64_t value : values) attribute->add_ints(value);
    return *this;
  }

  std::string Bytes() const { return model_.SerializeAsString(); }
  // The file's path; the folder lives as long as this.
  std::string Write() const { return folder_.Write("model.onnx", Bytes()); }
  const engine::test::TempFolder& folder() const { return folder_; }

 private:
  ::onnx::AttributeProto* Attribute(const std::string& name,
                                    ::onnx::AttributeProto::AttributeType type) {
    auto* const attribute = node_->add_attribute();
    attribute->set_name(name);
    attribute->set_type(type);
    return attribute;
  }

  ::onnx::ModelProto model_;
  ::onnx::NodeProto* node_ = nullptr;
  engine::test::TempFolder folder_;
};

}  // namespace engine::test
