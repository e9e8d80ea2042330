#include "lowering.h"

#include <algorithm>
#include <cctype>

#include "fold.h"
#include "shape_rules.h"

namespace engine::onnx {
namespace {

// Between two nodes that are no part of any pattern: deeper than any model, and far from the end of a
// thread's stack.
constexpr int kDeepest = 2000;

Result<Tensor> ConstantOf(const Node& node, const std::string& path) {
  if (const auto* const value = node.Find("value"); value != nullptr && value->has_t()) {
    return ReadTensor(value->t(), path);
  }
  if (const auto* const value = node.Find("value_float"))
    return Tensor{Tensor::Type::kFloat, {}, {value->f()}};
  if (const auto* const value = node.Find("value_int")) {
    return Tensor{Tensor::Type::kInt, {}, {static_cast<double>(value->i())}};
  }
  const auto list = [](Tensor::Type type, const auto& values) {
    return Tensor{type, {values.size()}, {values.begin(), values.end()}};
  };
  if (const auto* const value = node.Find("value_floats"))
    return list(Tensor::Type::kFloat, value->floats());
  if (const auto* const value = node.Find("value_ints"))
    return list(Tensor::Type::kInt, value->ints());
  return node.Unsupported("is a constant that is no tensor of numbers");
}

// "onnx_grid_sample" of GridSample, "com_acme_grid_sample" of the domain com.acme.
std::string CustomName(const Node& node) {
  std::string name = node.IsStandard() ? "onnx" : node.proto().domain();
  std::ranges::replace(name, '.', '_');
  bool after_small = true;
  for (const char c : node.proto().op_type()) {
    const bool capital = std::isupper(static_cast<unsigned char>(c)) != 0;
    if (capital && after_small) name += '_';
    name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    after_small = !capital;
  }
  return name;
}

Status FoldNode(Lowering& lowering, const Node& node) {
  std::vector<Tensor> outputs(1);
  if (node.type() == "Constant") {
    ENGINE_ASSIGN_OR_RETURN(outputs[0], ConstantOf(node, lowering.file().path()));
  } else {
    std::vector<std::shared_ptr<const Tensor>> inputs;
    std::vector<const Tensor*> borrowed;
    for (size_t i = 0; i < node.input_count(); ++i) {
      ENGINE_ASSIGN_OR_RETURN(inputs.emplace_back(), lowering.Constant(node, i));
      borrowed.push_back(inputs.back().get());
    }
    ENGINE_ASSIGN_OR_RETURN(outputs, Fold(node, borrowed));
  }
  for (size_t i = 0; i < std::min(outputs.size(), node.output_count()); ++i) {
    lowering.Set(node.output(i), lowering.ValueOf(std::move(outputs[i])));
  }
  return {};
}

Status ShapeOf(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  const Dims dims = x.Shape();
  if (node.type() == "Size") {
    return Give(lowering, node,
                lowering.ValueOf({Tensor::Type::kInt, {}, {static_cast<double>(Count(dims))}}));
  }
  const auto rank = static_cast<int64_t>(dims.size());
  const auto place = [&](int64_t axis) {
    return std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank);
  };
  const int64_t begin = place(node.Int("start", 0)), end = place(node.Int("end", rank));
  Tensor shape{.type = Tensor::Type::kInt};
  shape.values.assign(dims.begin() + begin, dims.begin() + std::max(begin, end));
  shape.dims = {static_cast<int64_t>(shape.values.size())};
  return Give(lowering, node, lowering.ValueOf(std::move(shape)));
}

// Attributes that only choose what this engine does where they have this value: another one is not
// passed over.
Status CheckAttributes(const Node& node) {
  constexpr std::pair<const char*, std::string_view> kKnown[] = {
      {"antialias", "0"},
      {"fmod", "0"},
      {"keep_aspect_ratio_policy", "stretch"},
      {"reduction", "none"},
      {"stash_type", "1"}};
  for (const auto& [attribute, known] : kKnown) {
    const auto* const found = node.IsStandard() ? node.Find(attribute) : nullptr;
    if (found == nullptr) continue;
    const std::string given = found->has_s() ? found->s() : std::to_string(found->i());
    if (given == known) continue;
    return node.Unsupported("has %s=%s, and only %s is known", attribute, given.c_str(),
                            known.data());
  }
  return {};
}

// An op of somebody's plugin for the type of the node; -1 without one. It gets its inputs in the order
// of their dimensions, and gives such outputs.
Result<ModelValue> Custom(Lowering& lowering, const Node& node, const std::string& op) {
  Attributes attributes;
  std::vector<Dims> lists(static_cast<size_t>(node.proto().attribute_size()));
  for (size_t i = 0; i < lists.size(); ++i) {
    const proto::AttributeProto& given = node.proto().attribute(static_cast<int>(i));
    if (given.type() == proto::AttributeProto::INT)
      attributes.push_back(kit::Int(given.name(), given.i()));
    if (given.type() == proto::AttributeProto::FLOAT)
      attributes.push_back(kit::Float(given.name(), given.f()));
    if (given.type() == proto::AttributeProto::STRING)
      attributes.push_back(kit::Word(given.name(), given.s()));
    if (given.type() != proto::AttributeProto::INTS) continue;
    lists[i].assign(given.ints().begin(), given.ints().end());
    attributes.push_back(IntsAttribute(given.name(), lists[i]));
  }
  if (lowering.builder().Offers(op, attributes) == 0) return ModelValue{-1};
  std::vector<ModelValue> inputs;
  for (size_t i = 0; i < node.input_count(); ++i) {
    if (!node.HasInput(i)) continue;
    ENGINE_ASSIGN_OR_RETURN(Value input, lowering.Input(node, i));
    ENGINE_ASSIGN_OR_RETURN(input, lowering.OneAxisEach(node, input, true));
    ENGINE_ASSIGN_OR_RETURN(inputs.emplace_back(), lowering.Engine(input));
  }
  std::vector<ModelValue> outputs(node.output_count());
  LayerSpec layer{.op = op, .name = node.name(), .attributes = attributes};
  ENGINE_RETURN_IF_ERROR(lowering.builder().Apply(layer, inputs, outputs));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorSpec spec = lowering.Spec(outputs[i]);
    Dims shape(spec.shape.dims, spec.shape.dims + spec.shape.ndim);
    if (spec.batched != 0) shape[0] = lowering.samples();
    lowering.Set(node.output(i),
                 {.engine = outputs[i],
                  .layout = Layout::RowMajor(shape, spec.batched != 0, lowering.samples())});
  }
  return outputs[0];
}

}  // namespace

Handler FindHandler(const std::string& type) {
  for (const auto entries : {ElementwiseHandlers(), ImageHandlers(), MoveHandlers(), NormHandlers(),
                             ProductHandlers()}) {
    for (const HandlerEntry& entry : entries) {
      if (MatchesAny(type, entry.types)) return entry.handler;
    }
  }
  return nullptr;
}

Status Give(Lowering& lowering, const Node& node, Value value) {
  lowering.Set(node.output(0), std::move(value));
  return {};
}

Status GiveOp(Lowering& lowering, const Node& node, std::string_view op,
              const std::vector<ModelValue>& inputs, const Attributes& attributes, Layout layout) {
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made,
                          lowering.Emit(node.name(), op, inputs, attributes));
  return Give(lowering, node, made, std::move(layout));
}

Result<ModelValue> EmitAll(Lowering& lowering, const Node& node, ModelValue x,
                           const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    ENGINE_ASSIGN_OR_RETURN(x, lowering.Emit(node.name(), step.op, {x}, step.attributes));
  }
  return x;
}

Result<Value> Lowering::Get(const std::string& name) {
  if (!values_.contains(name)) {
    if (const Node* const node = graph_.Producer(name)) {
      if (++depth_ > kDeepest) {
        return node->Unsupported("%d nodes of a pattern follow one another", kDeepest);
      }
      ENGINE_RETURN_IF_ERROR(Lower(*node));
      --depth_;
    } else if (const proto::TensorProto* const tensor = file_.FindInitializer(name)) {
      Value value;
      if (graph_.IsConstant(name)) {
        ENGINE_ASSIGN_OR_RETURN(Tensor read, ReadTensor(*tensor, file_.path()));
        value = ValueOf(std::move(read));
      } else {
        const Dims shape = DimsOf(*tensor);
        if (CheckedCount(shape) < 1) {
          return Status::Error(StatusCode::kBadData, "tensor '%s' has an impossible shape",
                               name.c_str());
        }
        value = {.parameter = name, .layout = Layout::RowMajor(shape, false, samples_)};
      }
      Set(name, std::move(value));
    }
  }
  const auto found = values_.find(name);
  if (found != values_.end()) return found->second;
  return Status::Error(StatusCode::kPlugin, "'%s' is an output that no op of the engine has",
                       name.c_str());
}

Result<Value> Lowering::Input(const Node& node, size_t i) {
  if (node.HasInput(i)) return Get(node.input(i));
  return node.Damaged("has no input %zu", i);
}

Result<std::shared_ptr<const Tensor>> Lowering::Constant(const Node& node, size_t i) {
  if (!node.HasInput(i)) return std::shared_ptr<const Tensor>();
  if (!graph_.IsConstant(node.input(i))) {
    return node.Unsupported(
        "its input '%s' depends on samples or on parameters; it has to be constant",
        node.input(i).c_str());
  }
  ENGINE_ASSIGN_OR_RETURN(const Value value, Get(node.input(i)));
  return value.constant;
}

bool Lowering::IsScalar(const std::string& name, double* value) {
  if (!graph_.IsConstant(name)) return false;
  const Result<Value> got = Get(name);
  if (!got.ok() || got->constant->count() != 1) return false;
  *value = got->constant->values[0];
  return true;
}

Status Lowering::Lower(const Node& node) {
  if (node.type() == "Shape" || node.type() == "Size") return ShapeOf(*this, node);
  ENGINE_RETURN_IF_ERROR(CheckAttributes(node));
  if (graph_.IsConstant(node.output(0))) return FoldNode(*this, node);
  if (const Handler handler = FindHandler(node.type())) return handler(*this, node);
  const std::string custom = CustomName(node);
  for (const proto::AttributeProto& attribute : node.proto().attribute()) {
    if (!attribute.has_g()) continue;
    return node.Unsupported(
        "is control flow, which no op of the engine is: export the model so that "
        "nothing in it is decided by shapes or samples");
  }
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made, Custom(*this, node, custom));
  if (made >= 0) return {};
  return node.Unsupported(
      "there is no op of this type; a plugin of ops adds it as \"%s\", with the inputs of the node "
      "in "
      "the order of their dimensions, and its attributes",
      custom.c_str());
}

Value Lowering::ValueOf(Tensor tensor) const {
  const Layout layout = Layout::RowMajor(tensor.dims, false, samples_);
  return {.constant = std::make_shared<const Tensor>(std::move(tensor)), .layout = layout};
}

Result<ModelValue> Lowering::Emit(const std::string& name, std::string_view op,
                                  const std::vector<ModelValue>& inputs,
                                  const Attributes& attributes) {
  std::string own = name;
  for (int i = 2; !names_.insert(own).second; ++i) own = name + "." + std::to_string(i);
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made, kit::Apply(builder_, own, op, inputs, attributes));
  last_name_ = own;
  const TensorSpec spec = Spec(made);
  if (spec.batched != 0 && spec.dtype != DType::kInt32) activation_ = spec.dtype;
  return made;
}

Result<ModelValue> Lowering::EmitLayer(const Node& node, std::string_view op, ModelValue x,
                                       const Value& weight, const Groups& groups, bool natural,
                                       const Value* bias, const Attributes& attributes) {
  const std::string& name = weight.parameter;
  const std::string layer = name.substr(0, name.rfind('.'));
  const bool is_own = natural && name == layer + ".weight" && !parameters_.contains(name) &&
                      !names_.contains(layer) &&
                      (bias == nullptr || (bias->parameter == layer + ".bias" &&
                                           !parameters_.contains(bias->parameter)));
  if (is_own) {
    ENGINE_ASSIGN_OR_RETURN(const ModelValue made, Emit(layer, op, {x}, attributes));
    ENGINE_RETURN_IF_ERROR(builder_.Parameter(name, nullptr, &parameters_[name]));
    if (bias != nullptr) {
      ENGINE_RETURN_IF_ERROR(
          builder_.Parameter(bias->parameter, nullptr, &parameters_[bias->parameter]));
    }
    return made;
  }
  std::vector<ModelValue> inputs = {x};
  ENGINE_ASSIGN_OR_RETURN(inputs.emplace_back(), Arrange(node, weight, groups));
  if (bias != nullptr) {
    ENGINE_ASSIGN_OR_RETURN(inputs.emplace_back(),
                            Arrange(node, *bias, {bias->layout.LogicalOrder()}));
  }
  return Emit(node.name(), op, inputs, attributes);
}

Result<ModelValue> Lowering::EmitNorm(const Node& node, std::string_view op, ModelValue x,
                                      const Value& weight, const Value* bias,
                                      const Attributes& attributes) {
  Value zeros;
  if (bias == nullptr && op != "rms_norm") {
    const int64_t count = Count(weight.layout.axes);
    zeros = ValueOf(
        {Tensor::Type::kFloat, {count}, std::vector<double>(static_cast<size_t>(count), 0.0)});
    bias = &zeros;
  }
  const DType activation = std::exchange(activation_, DType::kFloat32);
  const Result<ModelValue> made = EmitLayer(node, op, x, weight, {weight.layout.LogicalOrder()},
                                            weight.layout.axes.size() == 1, bias, attributes);
  activation_ = activation;
  return made;
}

bool Lowering::Bind(const std::string& parameter, const std::string& initializer) {
  if (parameter != initializer) sources_[parameter] = {file_.FindInitializer(initializer), nullptr};
  return parameters_.emplace(initializer, ModelValue{-1}).second;
}

Result<ModelValue> Lowering::MakeParameter(const std::string& name, DType dtype) {
  const auto found = parameters_.find(name);
  if (found != parameters_.end() && found->second >= 0) return found->second;
  if (found != parameters_.end()) {
    return Status::Error(StatusCode::kPlugin, "'%s' belongs to a batch norm and to another node",
                         name.c_str());
  }
  const Dims dims = DimsOf(*file_.FindInitializer(name));
  ParameterSpec wanted{.decay = dims.size() > 1 ? 1u : 0u, .dtype = dtype};
  if (dims.size() > size_t{kMaxDims}) {
    return Status::Error(StatusCode::kPlugin, "parameter '%s' has more than %d dimensions",
                         name.c_str(), kMaxDims);
  }
  for (const int64_t extent : dims) wanted.shape.dims[wanted.shape.ndim++] = extent;
  ENGINE_RETURN_IF_ERROR(builder_.Parameter(name, &wanted, &parameters_[name]));
  return parameters_[name];
}

Result<ModelValue> Lowering::MakeConstant(const std::shared_ptr<const Tensor>& tensor) {
  const std::pair key(activation_, *tensor);
  if (const auto found = constants_.find(key); found != constants_.end()) return found->second;
  const std::string name = "constant" + std::to_string(constants_.size() + 1);
  ParameterSpec wanted{.initializer = Initializer::kConstant, .decay = 0, .dtype = activation_};
  for (const int64_t extent : tensor->dims) {
    if (extent == 1) continue;
    if (wanted.shape.ndim == kMaxDims) {
      return Status::Error(StatusCode::kPlugin, "a constant has more than %d dimensions", kMaxDims);
    }
    wanted.shape.dims[wanted.shape.ndim++] = extent;
  }
  if (wanted.shape.ndim == 0) wanted.shape = Shape{1};
  ENGINE_RETURN_IF_ERROR(builder_.Parameter(name, &wanted, &constants_[key]));
  sources_[name] = {nullptr, tensor};
  return constants_[key];
}

Result<ModelValue> Lowering::Engine(const Value& value) {
  if (value.constant != nullptr) return MakeConstant(value.constant);
  if (!value.parameter.empty()) return MakeParameter(value.parameter, activation_);
  return value.engine;
}

}  // namespace engine::onnx
