// Reductions over dimensions, and the norms that are made of them.
#include "norms.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "shape_rules.h"

namespace engine::onnx {
namespace {

// ---- Along dimensions

// y = after(op(before(x))) over the axes, of which there may be none.
Result<ModelValue> Reduced(Lowering& lowering, const Node& node, ModelValue x, const Dims& axes) {
  const Step square = {"pow", {kit::Float("exponent", 2)}};
  struct Kind {
    const char* type;
    const char* op;
    std::vector<Step> before, after;
  };
  const Kind kinds[] = {{"ReduceL1", "reduce_sum", {{"abs"}}, {}},
                        {"ReduceL2", "reduce_sum", {square}, {{"sqrt"}}},
                        {"ReduceLogSum", "reduce_sum", {}, {{"log"}}},
                        {"ReduceMax", "reduce_max", {}, {}},
                        {"ReduceMean", "reduce_mean", {}, {}},
                        {"ReduceMin", "reduce_max", {Scaled(-1, 0)}, {Scaled(-1, 0)}},
                        {"ReduceSum", "reduce_sum", {}, {}},
                        {"ReduceSumSquare", "reduce_sum", {square}, {}}};
  const Attributes along = {IntsAttribute("axes", axes)};
  if (node.type() == "ReduceLogSumExp") {  // of what is not above 0, which exp can hold
    if (axes.empty()) return x;
    const Attributes kept = {along[0], kit::Bool("keep", true)};
    ENGINE_ASSIGN_OR_RETURN(const ModelValue most,
                            lowering.Emit(node.name(), "reduce_max", {x}, kept));
    ENGINE_ASSIGN_OR_RETURN(x, lowering.Emit(node.name(), "subtract", {x, most}));
    ENGINE_ASSIGN_OR_RETURN(x,
                            EmitAll(lowering, node, x, {{"exp"}, {"reduce_sum", kept}, {"log"}}));
    return lowering.Emit(node.name(), "add", {x, most});
  }
  const auto* const kind = std::ranges::find(kinds, node.type(), &Kind::type);
  ENGINE_ASSIGN_OR_RETURN(x, EmitAll(lowering, node, x, kind->before));
  if (!axes.empty()) {
    ENGINE_ASSIGN_OR_RETURN(x, lowering.Emit(node.name(), kind->op, {x}, along));
  }
  return EmitAll(lowering, node, x, kind->after);
}

Status LowerReduce(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const auto given, lowering.Constant(node, 1));
  const Layout& layout = x.layout;
  ENGINE_ASSIGN_OR_RETURN(const std::vector<bool> reduced,
                          ReducedDims(node, given.get(), layout.dims.size()));
  Dims axes;
  for (size_t i = 0; i < reduced.size(); ++i) {
    for (const int axis : layout.dims[i]) {
      if (reduced[i] && layout.IsSamples(axis)) {
        return node.Unsupported("reduces over the samples of a batch");
      }
      if (reduced[i]) axes.push_back(axis);
    }
  }
  Value y{.layout = {.batched = layout.batched, .samples = layout.samples}};
  std::vector<int> place(layout.axes.size());
  for (size_t i = 0; i < layout.axes.size(); ++i) {
    place[i] = static_cast<int>(y.layout.axes.size());
    if (std::ranges::find(axes, static_cast<int64_t>(i)) == axes.end())
      y.layout.axes.push_back(layout.axes[i]);
  }
  for (size_t i = 0; i < reduced.size(); ++i) {
    if (reduced[i] && node.Int("keepdims", 1) == 0) continue;
    std::vector<int>& dim = y.layout.dims.emplace_back();
    if (reduced[i]) continue;
    for (const int axis : layout.dims[i]) dim.push_back(axis == kShared ? kShared : place[axis]);
  }
  const Groups groups = OneEach(layout, layout.MemoryOrder(), layout.axes.size());
  ENGINE_ASSIGN_OR_RETURN(y.engine, lowering.Arrange(node, x, groups));
  ENGINE_ASSIGN_OR_RETURN(y.engine, Reduced(lowering, node, y.engine, axes));
  return Give(lowering, node, std::move(y));
}

Status LowerSoftmax(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  const auto rank = static_cast<size_t>(x.layout.rank());
  ENGINE_ASSIGN_OR_RETURN(const int64_t dim,
                          AxisOf(node, node.Int("axis", node.opset() < 13 ? 1 : -1), rank));
  if (node.opset() < 13 && dim != static_cast<int64_t>(rank) - 1) {
    return node.Unsupported("is over several dimensions; export it with opset 13");
  }
  std::vector<int> inner = x.layout.dims[dim];
  ENGINE_ASSIGN_OR_RETURN(const Last last, MakeLast(lowering, node, x, inner));
  return GiveOp(lowering, node, node.type() == "Softmax" ? "softmax" : "log_softmax", {last.input},
                {}, last.layout);
}

Status LowerLayerNormalization(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Value weight, lowering.Input(node, 1));
  ENGINE_ASSIGN_OR_RETURN(const Value bias, OptionalInput(lowering, node, 2));
  ENGINE_ASSIGN_OR_RETURN(const int64_t axis,
                          AxisOf(node, node.Int("axis", -1), x.layout.dims.size()));
  return LowerNorm(lowering, node, "layer_norm", x, x.layout.rank() - static_cast<int>(axis),
                   weight, node.HasInput(2) ? &bias : nullptr, node.Float("epsilon", 1e-5));
}

// ---- With channels in dimension 1

// The initialiser's name ends in this: a batch norm has its parameters from one module.
std::string ModuleOf(const Node& node) {
  const std::string& name = node.input(1);
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : node.name();
}

Status LowerBatchNormalization(Lowering& lowering, const Node& node) {
  constexpr const char* kOwn[] = {"weight", "bias", "running_mean", "running_var"};
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  if (x.layout.rank() < 2) return node.Damaged("has no channels");
  ENGINE_ASSIGN_OR_RETURN(const Last last, MakeLast(lowering, node, x, x.layout.dims[1]));
  std::string module = ModuleOf(node);
  for (size_t i = 0; i < 4; ++i) {
    const proto::TensorProto* const tensor = lowering.file().FindInitializer(node.input(i + 1));
    if (tensor == nullptr || DimsOf(*tensor) != Dims{x.Shape()[1]}) {
      return node.Unsupported(
          "its input '%s' is no initialiser with a number for each channel (as "
          "with affine=False); give it weights",
          node.input(i + 1).c_str());
    }
  }
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made,
                          lowering.Emit(module, "batch_norm", {last.input},
                                        {kit::Float("momentum", 1 - node.Float("momentum", 0.9)),
                                         kit::Float("epsilon", node.Float("epsilon", 1e-5)),
                                         kit::Bool("sync", lowering.sync_batch_norm())}));
  for (size_t i = 0; i < 4; ++i) {
    if (lowering.Bind(lowering.LastName() + "." + kOwn[i], node.input(i + 1))) continue;
    return node.Unsupported("has '%s' as another node has", node.input(i + 1).c_str());
  }
  return Give(lowering, node, made, last.layout);
}

// An instance is a group of one channel.
Status LowerGroupNormalization(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Value weight, lowering.Input(node, 1));
  ENGINE_ASSIGN_OR_RETURN(const Value bias, lowering.Input(node, 2));
  const Dims shape = x.Shape();
  if (shape.size() < 3 || weight.Shape() != Dims{shape[1]} || bias.Shape() != Dims{shape[1]}) {
    return node.Unsupported("has no plane, or not a number for each channel");
  }
  const int64_t groups = node.type() == "GroupNormalization" ? node.Int("num_groups", 1) : shape[1];
  return LowerGroupNorm(lowering, node, x, groups, weight, bias, node.Float("epsilon", 1e-5));
}

constexpr HandlerEntry kNormHandlers[] = {
    {"BatchNormalization", LowerBatchNormalization},
    {"GroupNormalization,InstanceNormalization", LowerGroupNormalization},
    {"LayerNormalization", LowerLayerNormalization},
    {"LogSoftmax,Softmax", LowerSoftmax},
    {"ReduceL1,ReduceL2,ReduceLogSum,ReduceLogSumExp,ReduceMax,ReduceMean,ReduceMin,ReduceSum,"
     "ReduceSumSquare",
     LowerReduce},
};

}  // namespace

Result<Last> MakeLast(Lowering& lowering, const Node& node, const Value& x,
                      const std::vector<int>& inner) {
  for (const int axis : inner) {
    if (x.layout.IsSamples(axis)) return node.Unsupported("works along the samples of a batch");
  }
  std::vector<int> order;
  for (const int axis : x.layout.MemoryOrder()) {
    if (std::ranges::find(inner, axis) == inner.end()) order.push_back(axis);
  }
  Groups groups = OneEach(x.layout, order, 0, size_t{kMaxDims} - 1);
  if (groups.empty()) groups.emplace_back();
  groups.push_back(inner);
  order.insert(order.end(), inner.begin(), inner.end());
  ENGINE_ASSIGN_OR_RETURN(const ModelValue input, lowering.Arrange(node, x, groups));
  return Last{input, x.layout.Reordered(order)};
}

Status LowerNorm(Lowering& lowering, const Node& node, std::string_view op, const Value& x,
                 int over, const Value& weight, const Value* bias, double epsilon) {
  std::vector<int> inner;
  for (int i = x.layout.rank() - over; i < x.layout.rank(); ++i) {
    inner.insert(inner.end(), x.layout.dims[i].begin(), x.layout.dims[i].end());
  }
  ENGINE_ASSIGN_OR_RETURN(const Last last, MakeLast(lowering, node, x, inner));
  ENGINE_ASSIGN_OR_RETURN(
      const ModelValue made,
      lowering.EmitNorm(node, op, last.input, weight, bias, {kit::Float("epsilon", epsilon)}));
  return Give(lowering, node, made, last.layout);
}

Status LowerGroupNorm(Lowering& lowering, const Node& node, const Value& x, int64_t groups,
                      const Value& weight, const Value& bias, double epsilon) {
  ENGINE_ASSIGN_OR_RETURN(const Last last, MakeLast(lowering, node, x, x.layout.dims[1]));
  ENGINE_ASSIGN_OR_RETURN(
      const ModelValue made,
      lowering.EmitNorm(node, "group_norm", last.input, weight, &bias,
                        {kit::Int("groups", groups), kit::Float("epsilon", epsilon)}));
  return Give(lowering, node, made, last.layout);
}

std::span<const HandlerEntry> NormHandlers() {
  return kNormHandlers;
}

}  // namespace engine::onnx
