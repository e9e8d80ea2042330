// An ONNX model (opset 17) that is written node by node, from the graph of a model of ours.
//
// Images have their channels last here and first in ONNX. Each value of the graph has a name for
// either layout, made when it is asked for: what works on images asks for channels first and gives
// them, so that transposes stand only where a model leaves its images, and none in between.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "app/weights/made_ops.h"
#include "app/weights/torch_layout.h"
#include "core/graph/graph.h"
#include "engine/tensor.h"

namespace engine::weights {

enum class Layout { kOurs, kChannelsFirst };

using OnnxAttribute =
    std::pair<const char*, std::variant<int64_t, float, std::string, std::vector<int64_t>>>;

class OnnxWriter {
 public:
  // `values`: of each parameter, in the engine's layout. All is borrowed.
  OnnxWriter(const graph::Graph& graph, const MadeOps& ops,
             const std::vector<const float*>& values);
  OnnxWriter(const OnnxWriter&) = delete;
  OnnxWriter& operator=(const OnnxWriter&) = delete;

  // One more node; the name of its output. What it makes is called after the layer that is written.
  std::string Add(const char* type, const std::vector<std::string>& inputs,
                  const std::vector<OnnxAttribute>& attributes = {});
  std::vector<std::string> Add(const char* type, size_t outputs,
                               const std::vector<std::string>& inputs,
                               const std::vector<OnnxAttribute>& attributes = {},
                               const std::string& domain = "");
  // Constants.
  std::string Scalar(float value) { return Floats({}, {value}); }
  std::string Floats(const Shape& shape, const std::vector<float>& values);
  std::string Ints(const std::vector<int64_t>& values);
  std::string Transpose(const std::string& x, const std::vector<int64_t>& order) {
    return Add("Transpose", {x}, {{"perm", order}});
  }

  // The name of a value in that layout, which tensors of less than three dimensions do not have.
  std::string Get(graph::ValueId value, Layout layout);
  void Set(graph::ValueId value, Layout layout, const std::string& name);
  // In which it was set.
  Layout LayoutOf(graph::ValueId value) const { return names_[value].native; }

  // The values of a parameter and its shape, as PyTorch has them.
  std::vector<float> TorchValues(int32_t parameter) const;
  const Shape& TorchShape(int32_t parameter) const { return layouts_[parameter].torch; }
  // The initialiser of a parameter as PyTorch has it, under its name.
  std::string Initialiser(int32_t parameter);
  // One of that name, in place of the parameter's own.
  std::string Initialiser(const std::string& name, const Shape& shape,
                          const std::vector<float>& values);

  // From here on nodes are those of `layer`.
  void Begin(const std::string& layer) { layer_ = layer; }
  bool flattens_for_linear(graph::NodeId node) const { return flattens_.contains(node); }
  // The batch norms that their convolution does, by its node, and what they add to the variance.
  std::map<const graph::Node*, std::pair<const graph::Node*, double>> folded;

  onnx::ModelProto model;

 private:
  struct Names {
    std::string of[2];  // by layout; empty: not made yet
    Layout native = Layout::kOurs;
  };
  std::string NewName(const std::string& what);

  const graph::Graph& graph_;
  const std::vector<const float*>& values_;
  const std::vector<TorchLayout> layouts_;  // of parameters
  const std::set<graph::NodeId> flattens_;
  std::vector<Names> names_;  // by value
  std::string layer_;
  std::map<std::string, int> used_;  // names, and how often
  std::set<std::string> initialisers_;
};

// One node of the graph that is to be written.
struct NodeCall {
  OnnxWriter& onnx;
  const graph::Graph& graph;
  graph::NodeId id;
  const graph::Node& node;
  const Attributes attributes;
  const char* type;  // of the entry in the table: what the op is called in ONNX

  std::string In(size_t i, Layout layout = Layout::kOurs) const {
    return onnx.Get(node.inputs[i], layout);
  }
  const TensorSpec& Input(size_t i = 0) const { return graph.values[node.inputs[i]].spec; }
  const TensorSpec& Output(size_t i = 0) const { return graph.values[node.outputs[i]].spec; }
  void Out(const std::string& name, Layout layout = Layout::kOurs, size_t i = 0) const {
    onnx.Set(node.outputs[i], layout, name);
  }
  bool MakesParameters() const { return node.signature.parameter_count > 0; }
  // Input i as PyTorch has it, if it is a parameter.
  std::string TorchIn(size_t i) const {
    const int32_t parameter = graph.values[node.inputs[i]].parameter;
    return parameter == graph::kNone ? In(i) : onnx.Initialiser(parameter);
  }
};

// Writes the nodes of one op. The attributes and the arithmetic are those of interfaces/kit.
struct OpWriter {
  std::string_view op;
  void (*write)(const NodeCall& call);
  const char* type = "";
};

// Null: an op of a plugin that is not one of the engine's.
const OpWriter* FindOpWriter(std::string_view op);
// Parts of the table.
std::span<const OpWriter> FunctionWriters();
std::span<const OpWriter> ImageWriters();
std::span<const OpWriter> ArrayWriters();

}  // namespace engine::weights
