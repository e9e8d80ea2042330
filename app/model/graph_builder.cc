// Values come in this order: tensors of the samples, inputs first, then what each op gives, behind
// the parameters that it wants. So a node never reads a value that a later one makes.
#include "app/model/graph_builder.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <set>
#include <utility>

#include "app/model/recompute.h"
#include "engine/ext/initial_values.h"

namespace engine::model {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;
using graph::ValueKind;

namespace {

// The title of the plugin that offers `op`.
std::string PluginOfOp(const std::vector<plugin::PluginChoice>& plugins, const std::string& op) {
  for (const plugin::PluginChoice& choice : plugins) {
    const std::vector<std::string>& ops = choice.entry.ops;
    if (std::find(ops.begin(), ops.end(), op) != ops.end()) return choice.entry.Title();
  }
  return "a plugin";
}

Status BrokenContract(const char* what) {
  return Status::Error(StatusCode::kPlugin, "the model %s; this is an error of its plugin", what);
}

bool CanBe(const ParameterSpec& wanted) {
  const bool rounded = wanted.dtype == DType::kBFloat16 && wanted.trained != 0;
  return plugin::CanBe(wanted.shape, DType::kFloat32) && std::isfinite(wanted.scale) &&
         plugin::IsKnown(wanted.initializer, Initializer::kConstant) &&
         (rounded || wanted.dtype == DType::kFloat32);
}

// Printable, in some bytes.
bool CanBeCalled(std::string_view name) {
  const auto is_control = [](unsigned char c) { return c < ' ' || c == 0x7f; };
  return !name.empty() && name.size() <= 256 && std::ranges::none_of(name, is_control);
}

// The size of what lies in memory for a value of the graph, or of an op's signature.
int64_t BytesOf(const TensorSpec& spec) {
  return spec.shape.Count() * static_cast<int64_t>(SizeOf(spec.dtype));
}

// What an op says that cannot be, or "". All of it is used for sizes and as indices later, and its
// counts for arrays of the SDK.
const char* Mistake(const OpSignature& op, std::vector<TensorSpec> inputs, int64_t max_samples) {
  const auto count = static_cast<int64_t>(inputs.size());
  if (op.output_count < 1 || op.output_count > kMaxOpOutputs)
    return "an impossible number of outputs";
  if (op.parameter_count < 0 || count + op.parameter_count > kMaxOpInputs) {
    return "an impossible number of parameters";
  }
  std::set<std::string_view> names;
  for (const ParameterSpec& wanted : std::span(op.parameters).first(op.parameter_count)) {
    const bool is_new = names.insert(wanted.name.view()).second;
    if (!is_new || !CanBeCalled(wanted.name.view())) return "an impossible name of a parameter";
    if (!CanBe(wanted)) return "an impossible parameter";
    inputs.push_back({wanted.shape, wanted.dtype});
  }
  for (const TensorSpec& output : std::span(op.outputs).first(op.output_count)) {
    const bool fits = plugin::CanBe(output.shape, output.dtype);
    const bool is_cut =
        output.batched != 0 && (output.shape.ndim < 1 || output.shape[0] % max_samples != 0);
    if (!fits || is_cut) return "an impossible output";
  }
  const auto all = static_cast<int32_t>(inputs.size());
  const int32_t view = op.output_is_view_of;
  if (view < -1 || view >= count || op.in_place_of < -1 || op.in_place_of >= all ||
      (view >= 0 && BytesOf(inputs[view]) != BytesOf(op.outputs[0]))) {
    return "an impossible input to share memory with";
  }
  const uint32_t masks = op.differentiable_inputs | op.accumulates | op.passes_gradient |
                         op.equal_gradients | op.gradient_in_place;
  if (masks >> all != 0) return "inputs that it does not have";
  const bool fits = op.saved_bytes >= 0 && op.workspace_bytes >= 0;
  if (!fits || std::max(op.saved_bytes, op.workspace_bytes) > plugin::kMaxBytes) {
    return "an impossible amount of memory";
  }
  return "";
}

// In (0, 1], from the upper 53 bits.
double Uniform(uint64_t key, uint64_t counter) {
  return (static_cast<double>(MixBits(key ^ MixBits(counter)) >> 11) + 1) * 0x1p-53;
}

// Random numbers are a function of a key and a counter, not the state of a generator: a parameter has
// the same values whatever was made before it, on every rank and for any number of ranks.
std::function<float(uint64_t key, uint64_t i)> InitialOf(const ParameterSpec& wanted) {
  const double scale = wanted.scale;
  switch (wanted.initializer) {
    case Initializer::kZeros:
      return [](uint64_t, uint64_t) { return 0.0f; };
    case Initializer::kOnes:
      return [](uint64_t, uint64_t) { return 1.0f; };
    case Initializer::kNormal:  // Box-Muller
      return [scale](uint64_t key, uint64_t i) {
        const auto squared = static_cast<float>(Uniform(key, 2 * i));
        const auto angle = static_cast<float>(2 * std::numbers::pi * Uniform(key, 2 * i + 1));
        return static_cast<float>(scale) * std::sqrt(-2 * std::log(squared)) * std::cos(angle);
      };
    case Initializer::kUniform:
      return [scale](uint64_t key, uint64_t i) {
        return static_cast<float>(scale * (2 * Uniform(key, i) - 1));
      };
    case Initializer::kConstant:
      break;
  }
  return nullptr;
}

const graph::Parameter* FindParameter(const Graph& graph, const std::string& name) {
  const auto found = std::ranges::find(graph.parameters, name, &graph::Parameter::name);
  return found == graph.parameters.end() ? nullptr : &*found;
}

Status Twice(const std::string& parameter) {
  return Status::Error(StatusCode::kConfig, "two parameters are called '%s'", parameter.c_str());
}

Status BadName(const std::string& name) {
  return BrokenContract(("calls something '" + name + "', which is no name").c_str());
}

std::string ShapeText(const Shape& shape) {
  std::string text = "(";
  for (int32_t i = 0; i < shape.ndim; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + ")";
}

}  // namespace

// Shapes of a graph are those of the largest batch; a step with fewer samples uses the first of each
// batched tensor.
GraphBuilder::GraphBuilder(const ModelRequest& request, plugin::OpFactory factory)
    : request_(request), factory_(std::move(factory)) {
  ENGINE_CHECK(request.max_samples >= 1, "max_samples is %lld",
               static_cast<long long>(request.max_samples));
  graph_.max_samples = request.max_samples;
  for (const auto& tensors : {request.inputs, request.targets}) {
    for (const SampleTensor& tensor : tensors) {
      TensorSpec spec{.shape = {graph_.max_samples}, .dtype = tensor.dtype, .batched = 1};
      std::copy_n(tensor.shape.dims, tensor.shape.ndim, spec.shape.dims + 1);
      spec.shape.ndim += tensor.shape.ndim;
      AddValue({.name = std::string(tensor.name), .spec = spec, .kind = ValueKind::kInput});
    }
  }
}

ModelData GraphBuilder::data() const noexcept {
  return {.inputs = request_.inputs,
          .targets = request_.targets,
          .with_loss = request_.with_loss ? 1u : 0u};
}

TensorSpec GraphBuilder::Spec(ModelValue value) const noexcept {
  const bool known = value >= 0 && value < static_cast<ValueId>(graph_.values.size());
  return known ? graph_.values[value].spec : TensorSpec();
}

uint32_t GraphBuilder::Offers(std::string_view op, Array<const OptionValue> attributes) noexcept {
  return factory_(std::string(op), plugin::Own(attributes)).ok();
}

// Of what a model gives nothing is trusted: values are checked before they are used as indices.
Status GraphBuilder::Apply(const LayerSpec& layer, std::span<const ModelValue> inputs,
                           std::span<ModelValue> outputs) noexcept {
  for (const ModelValue input : inputs) {
    if (!IsUsable(input)) return Keep(BrokenContract("feeds an op with a value that is not there"));
  }
  if (!std::isfinite(layer.learning_rate_scale) || !std::isfinite(layer.weight_decay_scale)) {
    return Keep(BrokenContract("has a layer whose learning rate or weight decay is not finite"));
  }
  return status_.ok() ? Keep(AddNode(layer, inputs, outputs)) : status_;
}

Status GraphBuilder::Parameter(std::string_view name, const ParameterSpec* wanted,
                               ModelValue* out) noexcept {
  if (!status_.ok()) return status_;
  if (out == nullptr || (wanted != nullptr && !CanBe(*wanted))) {
    return Keep(
        BrokenContract(("wants a parameter '" + std::string(name) + "' that cannot be").c_str()));
  }
  if (!CanBeCalled(name)) return Keep(BadName(std::string(name)));
  const std::string own(name);
  const graph::Parameter* const found = FindParameter(graph_, own);
  if (found != nullptr && wanted != nullptr) return Keep(Twice(own));
  if (found == nullptr && wanted == nullptr) {
    return Keep(Status::Error(StatusCode::kConfig, "the model has no parameter '%s'", own.c_str()));
  }
  *out = found != nullptr ? found->value : AddParameter(own, *wanted, {});
  return {};
}

Status GraphBuilder::Output(std::string_view name, ModelValue value) noexcept {
  if (!IsUsable(value)) return Keep(BrokenContract("has an output that is not there"));
  if (!CanBeCalled(name)) return Keep(BadName(std::string(name)));
  graph_.outputs.push_back({std::string(name), value});
  return status_;
}

Status GraphBuilder::Loss(ModelValue value) noexcept {
  if (!IsUsable(value)) return Keep(BrokenContract("has a loss that is not there"));
  if (!request_.with_loss) return Keep(BrokenContract("adds a loss to a graph for inference"));
  if (!IsLoss(value)) {
    return Keep(Status::Error(StatusCode::kConfig,
                              "model: '%s' is no loss: end with an op that gives its sum over the "
                              "targets, their number and how many were right",
                              graph_.values[value].name.c_str()));
  }
  losses_.push_back(value);
  return status_;
}

// Targets have no content in a graph for inference.
bool GraphBuilder::IsUsable(ModelValue value) const {
  const auto inputs = static_cast<ValueId>(request_.inputs.size());
  const auto all = inputs + static_cast<ValueId>(request_.targets.size());
  return value >= 0 && value < static_cast<ValueId>(graph_.values.size()) &&
         (request_.with_loss || value < inputs || value >= all);
}

// Output 0 of an op that is a loss, with the numbers of one.
bool GraphBuilder::IsLoss(ModelValue value) const {
  const graph::Value& of = graph_.values[value];
  return of.producer != kNone && graph_.nodes[of.producer].signature.is_loss != 0 &&
         graph_.nodes[of.producer].outputs[0] == value && of.spec.dtype == DType::kFloat32 &&
         of.spec.shape == Shape{3};
}

// A model that goes on after an error is told that error again, and changes nothing any more that
// Finish would give out.
Status GraphBuilder::Keep(const Status& status) {
  if (status_.ok()) status_ = status;
  return status_;
}

ValueId GraphBuilder::AddValue(graph::Value value) {
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

// A parameter and its value refer to each other, and neither is ever moved in its list.
ValueId GraphBuilder::AddParameter(std::string name, const ParameterSpec& wanted,
                                   const LayerSpec& layer) {
  const ValueId value = AddValue({.name = name,
                                  .spec = {.shape = wanted.shape, .dtype = wanted.dtype},
                                  .kind = ValueKind::kParameter,
                                  .parameter = static_cast<int32_t>(graph_.parameters.size())});
  graph_.parameters.push_back({.name = std::move(name),
                               .value = value,
                               .shape = wanted.shape,
                               .initial = InitialOf(wanted),
                               .decay = wanted.decay != 0,
                               .learning_rate_scale = layer.learning_rate_scale,
                               .weight_decay_scale = layer.weight_decay_scale,
                               .trainable = layer.trainable != 0 && wanted.trained != 0 &&
                                            wanted.initializer != Initializer::kConstant,
                               .buffer = wanted.trained == 0});
  return value;
}

// Fills in op and signature of a node that has name and inputs. The signature comes from a plugin: its
// counts are checked before arrays of the SDK, which have fixed sizes, are read by them.
Status GraphBuilder::MakeOp(const LayerSpec& layer, Node* node) const {
  auto made = factory_(node->op_name, plugin::Own(layer.attributes));
  if (!made.ok()) return made.status().WithContext("layer '%s'", node->name.c_str());
  node->op = std::move(*made);
  std::vector<TensorSpec> specs;
  std::string shapes;
  for (const ValueId input : node->inputs) {
    specs.push_back(graph_.values[input].spec);
    shapes += (shapes.empty() ? "" : " and ") + ShapeText(specs.back().shape);
  }
  const OpSignature& signature = node->signature;
  if (request_.plugins != nullptr) node->plugin = PluginOfOp(request_.plugins->ops, node->op_name);
  const base::OpenCall open(request_.watch, node->plugin, "Infer of '" + node->op_name + "'");
  Status inferred = plugin::Answer(node->op->Infer(specs, &node->signature));
  const char* const mistake = inferred.ok() ? Mistake(signature, specs, request_.max_samples) : "";
  if (*mistake != '\0') inferred = Status::Error(StatusCode::kPlugin, "it states %s", mistake);
  return inferred.WithContext("%s: layer '%s' (%s, fed with %s)", node->plugin.c_str(),
                              node->name.c_str(), node->op_name.c_str(), shapes.c_str());
}

// What can fail comes before the graph changes, but for what ends the build.
Status GraphBuilder::AddNode(const LayerSpec& layer, std::span<const ModelValue> inputs,
                             std::span<ModelValue> outputs) {
  Node node{.name = std::string(layer.name),
            .op_name = std::string(layer.op),
            .inputs = {inputs.begin(), inputs.end()},
            .priority = layer.priority};
  const auto same_op = [&](const Node& other) { return other.op_name == node.op_name; };
  const auto same_name = [&](const Node& other) { return other.name == node.name; };
  if (node.name.empty()) {
    node.name =
        node.op_name +
        std::to_string(std::count_if(graph_.nodes.begin(), graph_.nodes.end(), same_op) + 1);
  }
  if (!CanBeCalled(node.name)) return BadName(node.name);
  if (std::any_of(graph_.nodes.begin(), graph_.nodes.end(), same_name)) {
    return Status::Error(StatusCode::kConfig, "two layers are called '%s'; give one another name",
                         node.name.c_str());
  }
  ENGINE_RETURN_IF_ERROR(MakeOp(layer, &node));
  const OpSignature& signature = node.signature;
  for (int32_t i = 0; i < signature.parameter_count; ++i) {
    const ParameterSpec& wanted = signature.parameters[i];
    const std::string own = node.name + "." + std::string(wanted.name.view());
    if (FindParameter(graph_, own) != nullptr) return Twice(own);
    node.inputs.push_back(AddParameter(own, wanted, layer));
  }
  for (int32_t i = 0; i < signature.output_count; ++i) {
    node.outputs.push_back(
        AddValue({.name = i == 0 ? node.name : node.name + "." + std::to_string(i),
                  .spec = signature.outputs[i],
                  .producer = static_cast<NodeId>(graph_.nodes.size())}));
  }
  if (node.outputs.size() < outputs.size()) return BrokenContract("takes more than an op gives");
  std::copy_n(node.outputs.begin(), outputs.size(), outputs.begin());
  graph_.nodes.push_back(std::move(node));
  return {};
}

// Buffers are not trainable in any case; a prefix may fit them too.
Status GraphBuilder::Freeze() {
  for (const std::string& prefix : request_.frozen) {
    bool used = false;
    for (graph::Parameter& parameter : graph_.parameters) {
      if (!parameter.name.starts_with(prefix)) continue;
      parameter.trainable = false;
      used = true;
    }
    if (used) continue;
    return Status::Error(StatusCode::kConfig,
                         "model.frozen: no parameter's name starts with '%s'; the first is '%s'",
                         prefix.c_str(),
                         graph_.parameters.empty() ? "" : graph_.parameters[0].name.c_str());
  }
  return {};
}

// Several losses are one: the op "add" brings sums, numbers of targets and hits together, element by
// element.
Result<Graph> GraphBuilder::Finish() {
  ENGINE_RETURN_IF_ERROR(status_);
  if (graph_.outputs.empty()) return BrokenContract("has no output");
  if (request_.with_loss && losses_.empty()) return BrokenContract("has no loss");
  ENGINE_RETURN_IF_ERROR(Freeze());
  if (request_.with_loss) ENGINE_RETURN_IF_ERROR(MarkRecomputed(request_.recompute, &graph_));
  if (!losses_.empty()) graph_.loss = losses_[0];
  for (size_t i = 1; i < losses_.size(); ++i) {
    const std::string name = "loss.sum" + std::to_string(i);
    const ModelValue both[] = {graph_.loss, losses_[i]};
    ENGINE_RETURN_IF_ERROR(AddNode({.op = "add", .name = name}, both, {&graph_.loss, 1}));
  }
  graph_.input = 0;
  graph_.logits = graph_.outputs[0].value;
  const auto inputs = static_cast<ValueId>(request_.inputs.size());
  const auto all = inputs + static_cast<ValueId>(request_.targets.size());
  if (request_.with_loss && all > inputs) graph_.target = inputs;
  for (ValueId i = 1; i < (request_.with_loss ? all : inputs); ++i) {
    if (i != graph_.target) graph_.others.push_back(i);
  }
  return std::move(graph_);
}

Result<Graph> BuildModel(const Model& model, const ModelRequest& request,
                         const plugin::OpFactory& factory) {
  if (request.inputs.empty()) {
    return Status::Error(StatusCode::kPlugin, "the dataset has samples without any input");
  }
  GraphBuilder builder(request, factory);
  const Status built = plugin::Answer(model.Build(builder));
  // The builder knows better what is wrong than who hands on what it has said.
  ENGINE_RETURN_IF_ERROR(builder.status());
  ENGINE_RETURN_IF_ERROR(built);
  ENGINE_ASSIGN_OR_RETURN(Graph graph, builder.Finish());
  const InitialValues* const given = Query<InitialValues>(model);
  for (graph::Parameter& parameter : graph.parameters) {
    if (given != nullptr && given->Has(parameter.name) != 0) {
      parameter.values.resize(static_cast<size_t>(parameter.shape.Count()));
      ENGINE_RETURN_IF_ERROR(plugin::Answer(given->Read(parameter.name, parameter.values)));
    } else if (parameter.constant()) {
      return BrokenContract(("has no values for its constant '" + parameter.name + "'").c_str());
    }
  }
  return graph;
}

}  // namespace engine::model
