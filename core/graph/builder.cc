#include "core/graph/builder.h"

#include <algorithm>
#include <utility>

namespace engine::graph {
namespace {

std::string ShapeText(const Shape& shape) {
  std::string text = "(";
  for (int32_t i = 0; i < shape.ndim; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + ")";
}

bool PicksRows(const ParameterSpec& wanted, const LayerOptions& options) {
  return wanted.shape.ndim == 2 && !options.row_table.empty() &&
         wanted.name.view() == options.row_table;
}

}  // namespace

GraphBuilder::GraphBuilder(OpFactory factory, int64_t max_samples) : factory_(std::move(factory)) {
  ENGINE_CHECK(max_samples >= 1, "max_samples is %lld", static_cast<long long>(max_samples));
  graph_.max_samples = max_samples;
}

ValueId GraphBuilder::AddValue(Value value) {
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId GraphBuilder::AddParameter(std::string name, const ParameterSpec& wanted,
                                   const LayerOptions& options) {
  Parameter parameter{.name = std::move(name),
                      .value = kNone,
                      .shape = wanted.shape,
                      .initializer = wanted.initializer,
                      .scale = wanted.scale,
                      .decay = wanted.decay != 0,
                      .learning_rate_scale = options.learning_rate_scale,
                      .weight_decay_scale = options.weight_decay_scale,
                      .trainable = options.trainable && wanted.trained != 0,
                      .buffer = wanted.trained == 0,
                      .row_elements = PicksRows(wanted, options) ? wanted.shape[1] : 0};
  parameter.value = AddValue({.name = parameter.name,
                              .spec = {.shape = wanted.shape, .dtype = wanted.dtype},
                              .kind = ValueKind::kParameter,
                              .producer = kNone,
                              .parameter = static_cast<int32_t>(graph_.parameters.size())});
  graph_.parameters.push_back(std::move(parameter));
  return graph_.parameters.back().value;
}

ValueId GraphBuilder::Input(const std::string& name, const Shape& sample_shape, DType dtype) {
  Value value{.name = name, .spec = {}, .kind = ValueKind::kInput};
  value.spec.dtype = dtype;
  value.spec.batched = 1;
  value.spec.shape.ndim = sample_shape.ndim + 1;
  value.spec.shape[0] = graph_.max_samples;
  for (int32_t i = 0; i < sample_shape.ndim; ++i) value.spec.shape.dims[i + 1] = sample_shape[i];
  return AddValue(std::move(value));
}

std::string GraphBuilder::UniqueName(const std::string& name, const std::string& op) {
  op_names_.push_back(op);
  if (!name.empty()) return name;
  return op + std::to_string(std::count(op_names_.begin(), op_names_.end(), op));
}

Result<ValueId> GraphBuilder::Apply(const std::string& name, const std::string& op,
                                    const std::vector<ValueId>& inputs,
                                    const std::vector<plugin::OwnedOption>& attributes,
                                    const LayerOptions& options) {
  ENGINE_ASSIGN_OR_RETURN(const std::vector<ValueId> outputs,
                          ApplyAll(name, op, inputs, attributes, options));
  return outputs[0];
}

Result<std::vector<ValueId>> GraphBuilder::ApplyAll(
    const std::string& name, const std::string& op, const std::vector<ValueId>& inputs,
    const std::vector<plugin::OwnedOption>& attributes, const LayerOptions& options) {
  Node node;
  node.name = UniqueName(name, op);
  for (const Node& other : graph_.nodes) {
    if (other.name == node.name) {
      return Status::Error(StatusCode::kConfig, "two layers are called '%s'; give one another name",
                           node.name.c_str());
    }
  }
  node.op_name = op;
  node.priority = options.priority;
  node.inputs = inputs;
  auto made = factory_(op, attributes);
  if (!made.ok()) return made.status().WithContext("layer '%s'", node.name.c_str());
  node.op = std::move(*made);

  std::vector<TensorSpec> specs;
  std::string shapes;
  for (ValueId input : inputs) {
    specs.push_back(spec(input));
    shapes += (shapes.empty() ? "" : " and ") + ShapeText(spec(input).shape);
  }
  Status inferred = node.op->Infer(specs, &node.signature);
  if (!inferred.ok()) {
    return inferred.WithContext("layer '%s' (%s, fed with %s)", node.name.c_str(), op.c_str(),
                                shapes.c_str());
  }
  const OpSignature& signature = node.signature;
  const auto id = static_cast<NodeId>(graph_.nodes.size());
  if (signature.output_count < 1 || signature.output_count > kMaxOpOutputs ||
      signature.parameter_count < 0 ||
      static_cast<int64_t>(inputs.size()) + signature.parameter_count > kMaxOpInputs) {
    return Status::Error(StatusCode::kPlugin, "op '%s' states %d outputs and %d parameters",
                         op.c_str(), signature.output_count, signature.parameter_count);
  }
  for (int32_t i = 0; i < signature.parameter_count; ++i) {
    const ParameterSpec& wanted = signature.parameters[i];
    node.inputs.push_back(
        AddParameter(node.name + "." + std::string(wanted.name.view()), wanted, options));
  }
  for (int32_t i = 0; i < signature.output_count; ++i) {
    node.outputs.push_back(
        AddValue({.name = i == 0 ? node.name : node.name + "." + std::to_string(i),
                  .spec = signature.outputs[i],
                  .kind = ValueKind::kActivation,
                  .producer = id}));
  }
  std::vector<ValueId> outputs = node.outputs;
  graph_.nodes.push_back(std::move(node));
  return outputs;
}

Result<ValueId> GraphBuilder::ParameterValue(const std::string& name) const {
  for (const Parameter& parameter : graph_.parameters) {
    if (parameter.name == name) return parameter.value;
  }
  return Status::Error(StatusCode::kConfig, "the model has no parameter '%s'", name.c_str());
}

Result<ValueId> GraphBuilder::MakeParameter(const std::string& name, const ParameterSpec& wanted) {
  if (ParameterValue(name).ok()) {
    return Status::Error(StatusCode::kConfig, "two parameters are called '%s'", name.c_str());
  }
  return AddParameter(name, wanted, {});
}

bool GraphBuilder::IsLoss(ValueId value) const {
  const NodeId producer = graph_.values[value].producer;
  const TensorSpec& of = spec(value);
  return producer != kNone && graph_.nodes[producer].signature.is_loss != 0 &&
         graph_.nodes[producer].outputs[0] == value && of.dtype == DType::kFloat32 &&
         of.shape == Shape{3};
}

// Of a parameter that its layer calls its row table: whether the batch picks the rows, and nothing
// else uses it.
bool GraphBuilder::IsRowTable(const Parameter& parameter) const {
  if (spec(graph_.input).dtype != DType::kInt32) return false;
  int64_t uses = 0;
  bool by_batch = false;
  for (const Node& node : graph_.nodes) {
    const auto here = std::count(node.inputs.begin(), node.inputs.end(), parameter.value);
    uses += here;
    by_batch = by_batch || (here > 0 && node.inputs[0] == graph_.input);
  }
  return uses == 1 && by_batch;
}

Result<Graph> GraphBuilder::Finish(ValueId input, ValueId target, ValueId logits, ValueId loss,
                                   const std::vector<std::string>& frozen) {
  for (const std::string& prefix : frozen) {
    bool used = false;
    for (Parameter& parameter : graph_.parameters) {
      if (parameter.name.rfind(prefix, 0) != 0) continue;
      parameter.trainable = false;
      used = true;
    }
    if (!used) {
      return Status::Error(StatusCode::kConfig,
                           "model.frozen: no parameter's name starts with '%s'; the first is '%s'",
                           prefix.c_str(),
                           graph_.parameters.empty() ? "" : graph_.parameters[0].name.c_str());
    }
  }
  graph_.input = input;
  for (Parameter& parameter : graph_.parameters) {
    if (parameter.row_elements > 0 && !IsRowTable(parameter)) parameter.row_elements = 0;
  }
  graph_.target = target;
  graph_.logits = logits;
  graph_.outputs = {{"logits", logits}};
  graph_.loss = loss;
  return std::move(graph_);
}

}  // namespace engine::graph
