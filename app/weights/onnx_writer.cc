#include "app/weights/onnx_writer.h"

#include <algorithm>

namespace engine::weights {
namespace {

void SetTensor(onnx::TensorProto* tensor, int32_t type, const std::string& name, const void* data,
               size_t size_bytes) {
  tensor->set_name(name);
  tensor->set_data_type(type);
  tensor->set_raw_data(data, size_bytes);
}

struct SetAttribute {
  onnx::AttributeProto* attribute;
  void operator()(int64_t value) const {
    attribute->set_type(onnx::AttributeProto::INT);
    attribute->set_i(value);
  }
  void operator()(float value) const {
    attribute->set_type(onnx::AttributeProto::FLOAT);
    attribute->set_f(value);
  }
  void operator()(const std::string& value) const {
    attribute->set_type(onnx::AttributeProto::STRING);
    attribute->set_s(value);
  }
  void operator()(const std::vector<int64_t>& values) const {
    attribute->set_type(onnx::AttributeProto::INTS);
    for (const int64_t value : values) attribute->add_ints(value);
  }
};

// (B, ..., C) -> (B, C, ...), and back.
std::vector<int64_t> OrderTo(Layout layout, int32_t ndim) {
  std::vector<int64_t> order = {0};
  const bool first = layout == Layout::kChannelsFirst;
  if (first) order.push_back(ndim - 1);
  for (int32_t i = 1; i + 1 < ndim; ++i) order.push_back(first ? i : i + 1);
  if (!first) order.push_back(1);
  return order;
}

}  // namespace

OnnxWriter::OnnxWriter(const graph::Graph& graph, const MadeOps& ops,
                       const std::vector<const float*>& values)
    : graph_(graph),
      values_(values),
      layouts_(TorchLayouts(graph, ops)),
      flattens_(FlattensForLinear(graph)),
      names_(graph.values.size()) {}

std::string OnnxWriter::NewName(const std::string& what) {
  const std::string name = layer_ + "/" + what;
  const int times = used_[name]++;
  return times == 0 ? name : name + "_" + std::to_string(times);
}

std::string OnnxWriter::Add(const char* type, const std::vector<std::string>& inputs,
                            const std::vector<OnnxAttribute>& attributes) {
  return Add(type, 1, inputs, attributes).front();
}

std::vector<std::string> OnnxWriter::Add(const char* type, size_t outputs,
                                         const std::vector<std::string>& inputs,
                                         const std::vector<OnnxAttribute>& attributes,
                                         const std::string& domain) {
  onnx::NodeProto* node = model.mutable_graph()->add_node();
  node->set_op_type(type);
  if (!domain.empty()) node->set_domain(domain);
  node->set_name(NewName(type));
  for (const std::string& input : inputs) node->add_input(input);
  std::vector<std::string> names;
  for (size_t i = 0; i < outputs; ++i) {
    names.push_back(node->name() + (i == 0 ? ":0" : ":" + std::to_string(i)));
    node->add_output(names.back());
  }
  for (const auto& [name, value] : attributes) {
    onnx::AttributeProto* attribute = node->add_attribute();
    attribute->set_name(name);
    std::visit(SetAttribute{attribute}, value);
  }
  return names;
}

std::string OnnxWriter::Floats(const Shape& shape, const std::vector<float>& values) {
  return Initialiser(NewName("constant"), shape, values);
}

std::string OnnxWriter::Ints(const std::vector<int64_t>& values) {
  onnx::TensorProto* tensor = model.mutable_graph()->add_initializer();
  SetTensor(tensor, onnx::TensorProto::INT64, NewName("constant"), values.data(),
            values.size() * sizeof(int64_t));
  tensor->add_dims(static_cast<int64_t>(values.size()));
  return tensor->name();
}

std::string OnnxWriter::Initialiser(const std::string& name, const Shape& shape,
                                    const std::vector<float>& values) {
  if (!initialisers_.insert(name).second) return name;
  onnx::TensorProto* tensor = model.mutable_graph()->add_initializer();
  SetTensor(tensor, onnx::TensorProto::FLOAT, name, values.data(), values.size() * sizeof(float));
  for (int32_t i = 0; i < shape.ndim; ++i) tensor->add_dims(shape[i]);
  return name;
}

std::vector<float> OnnxWriter::TorchValues(int32_t parameter) const {
  return ToTorch(layouts_[parameter], values_[parameter]);
}

std::string OnnxWriter::Initialiser(int32_t parameter) {
  const std::string& name = graph_.parameters[parameter].name;
  if (initialisers_.contains(name)) return name;
  return Initialiser(name, TorchShape(parameter), TorchValues(parameter));
}

std::string OnnxWriter::Get(graph::ValueId value, Layout layout) {
  const graph::Value& of = graph_.values[value];
  if (of.parameter != graph::kNone) {
    const graph::Parameter& parameter = graph_.parameters[of.parameter];
    const float* const ours = values_[of.parameter];
    const std::string name =
        layouts_[of.parameter].same()
            ? Initialiser(of.parameter)
            : Initialiser(parameter.name + "/channels_last", parameter.shape,
                          std::vector<float>(ours, ours + parameter.shape.Count()));
    const int32_t ndim = parameter.shape.ndim;
    if (layout == Layout::kOurs || ndim < 3) return name;
    return Transpose(name, OrderTo(layout, ndim));
  }
  Names& names = names_[value];
  if (of.spec.shape.ndim < 3) layout = names.native;
  std::string& name = names.of[static_cast<int>(layout)];
  if (name.empty()) {
    name = Transpose(names.of[static_cast<int>(names.native)], OrderTo(layout, of.spec.shape.ndim));
  }
  return name;
}

void OnnxWriter::Set(graph::ValueId value, Layout layout, const std::string& name) {
  names_[value].native = layout;
  names_[value].of[static_cast<int>(layout)] = name;
}

const OpWriter* FindOpWriter(std::string_view op) {
  for (const auto& part : {FunctionWriters(), ImageWriters(), ArrayWriters()}) {
    const auto found = std::ranges::find(part, op, &OpWriter::op);
    if (found != part.end()) return &*found;
  }
  return nullptr;
}

}  // namespace engine::weights
