#include "app/weights/torch_layout.h"

#include <numeric>
#include <optional>
#include <string_view>

namespace engine::weights {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Ops that compute each element from the one at its place, and may stand between a flattened image
// and the layer that reads it.
bool IsElementwise(std::string_view op) {
  return IsOneOf(op, {"relu", "gelu",       "gelu_erf",     "tanh",       "sigmoid",    "silu",
                      "elu",  "leaky_relu", "hard_sigmoid", "hard_swish", "clip",       "exp",
                      "log",  "sqrt",       "abs",          "erf",        "softplus",   "mish",
                      "sin",  "cos",        "pow",          "scale",      "reciprocal", "dropout"});
}

// Ops whose output is an image if an input is one.
bool KeepsImage(std::string_view op) {
  return IsElementwise(op) ||
         IsOneOf(op, {"add", "subtract", "multiply", "divide", "maximum", "minimum", "power",
                      "batch_norm", "group_norm", "layer_norm", "add_layer_norm", "concat", "pad"});
}

bool MakesImage(std::string_view op) {
  return IsOneOf(
      op, {"to_channels_last", "conv2d", "conv_transpose2d", "max_pool", "avg_pool", "resize"});
}

Order Identity() {
  Order order;
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// A parameter that a model made, and not its op, has the layout that the model knows: PyTorch's in a
// model that came from there.
bool MakesParameters(const Node& node) {
  return node.signature.parameter_count > 0;
}

// Of each value of the graph, whether it is an image with its channels last, (B, ..., C).
std::vector<bool> FindImages(const Graph& graph) {
  std::vector<bool> images(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    const bool reads = std::ranges::any_of(node.inputs, [&](ValueId v) { return images[v]; });
    const bool image = MakesImage(node.op_name) || (KeepsImage(node.op_name) && reads);
    for (const ValueId output : node.outputs) {
      images[output] = image && graph.values[output].spec.shape.ndim >= 3;
    }
  }
  return images;
}

// The image that a fully connected layer reads flattened: (H, W, C) without the batch.
std::optional<Shape> FlattenedImage(const Graph& graph, const std::set<NodeId>& flattens,
                                    ValueId value) {
  for (NodeId n = graph.values[value].producer; n != graph::kNone;
       n = graph.values[graph.nodes[n].inputs[0]].producer) {
    const Node& node = graph.nodes[n];
    if (flattens.contains(n)) return graph.values[node.inputs[0]].spec.shape;
    if (!IsElementwise(node.op_name)) break;
  }
  return std::nullopt;
}

// (in, out) or (out, in), by whether it is `transposed`, behind a flattened image (B, ..., C).
TorchLayout LayoutOfLinear(const Shape& ours, bool transposed, const std::optional<Shape>& image) {
  TorchLayout layout{.view = ours, .order = Identity(), .torch = ours};
  if (transposed) {
    layout.order[0] = 1;
    layout.order[1] = 0;
    layout.torch = Permuted(ours, layout.order);
  }
  if (!image) return layout;
  // (out, ..., C) -> (out, C, ...); transposed: (..., C, out) -> the same
  const int32_t inner = image->ndim - 1;
  layout.view.ndim = 0;
  const auto add = [&](int64_t extent) { layout.view.dims[layout.view.ndim++] = extent; };
  if (!transposed) add(ours[0]);
  for (int32_t i = 1; i <= inner; ++i) add((*image)[i]);
  if (transposed) add(ours[1]);
  const int32_t first = transposed ? 0 : 1;  // of the image's dimensions in the view
  layout.order[0] = transposed ? inner : 0;
  layout.order[1] = first + inner - 1;
  for (int32_t i = 0; i + 1 < inner; ++i) layout.order[2 + i] = first + i;
  return layout;
}

}  // namespace

Shape Permuted(const Shape& x, const Order& order) {
  Shape y = x;
  for (int32_t i = 0; i < x.ndim; ++i) y.dims[i] = x.dims[order[i]];
  return y;
}

std::vector<float> Permuted(const float* x, const Shape& shape, const Order& order) {
  if (std::equal(order.begin(), order.begin() + shape.ndim, Identity().begin())) {
    return {x, x + shape.Count()};
  }
  std::vector<float> y(static_cast<size_t>(shape.Count()));
  std::array<int64_t, kMaxDims> index{};  // in y
  const Shape to = Permuted(shape, order);
  for (float& element : y) {
    int64_t from = 0;
    for (int32_t i = 0; i < to.ndim; ++i) from += index[i] * shape.Count(order[i] + 1);
    element = x[from];
    for (int32_t i = to.ndim - 1; i >= 0 && ++index[i] == to.dims[i]; --i) index[i] = 0;
  }
  return y;
}

std::vector<float> ToTorch(const TorchLayout& layout, const float* ours) {
  return Permuted(ours, layout.view, layout.order);
}

std::vector<float> FromTorch(const TorchLayout& layout, const float* torch) {
  Order back = Identity();
  for (int32_t i = 0; i < layout.view.ndim; ++i) back[layout.order[i]] = i;
  return Permuted(torch, Permuted(layout.view, layout.order), back);
}

std::vector<std::vector<NodeId>> FindReaders(const Graph& graph) {
  std::vector<std::vector<NodeId>> readers(graph.values.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const ValueId input : graph.nodes[n].inputs) {
      readers[input].push_back(static_cast<NodeId>(n));
    }
  }
  return readers;
}

std::set<NodeId> FlattensForLinear(const Graph& graph) {
  const std::vector<bool> images = FindImages(graph);
  const auto readers = FindReaders(graph);
  const auto is_output = [&](ValueId value) {
    return std::ranges::any_of(graph.outputs, [&](const auto& out) { return out.value == value; });
  };
  const auto fits = [&](const auto& self, ValueId value) -> bool {
    return !is_output(value) && std::ranges::all_of(readers[value], [&](NodeId n) {
      const Node& node = graph.nodes[n];
      if (IsElementwise(node.op_name)) return self(self, node.outputs[0]);
      return node.op_name == "linear" && MakesParameters(node);
    });
  };
  std::set<NodeId> found;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op_name == "flatten" && images[node.inputs[0]] && fits(fits, node.outputs[0])) {
      found.insert(static_cast<NodeId>(n));
    }
  }
  return found;
}

std::vector<TorchLayout> TorchLayouts(const Graph& graph, const MadeOps& ops) {
  std::vector<TorchLayout> layouts;
  for (const graph::Parameter& parameter : graph.parameters) {
    layouts.push_back({.view = parameter.shape, .order = Identity(), .torch = parameter.shape});
  }
  const std::set<NodeId> flattens = FlattensForLinear(graph);
  for (const Node& node : graph.nodes) {
    const bool conv = node.op_name == "conv2d", linear = node.op_name == "linear";
    if ((!conv && !linear) || !MakesParameters(node)) continue;
    const Attributes attributes = ops.Of(node);
    TorchLayout& layout = layouts[graph.values[node.inputs[1]].parameter];
    if (conv && attributes.Word("layout", "hwio") == "hwio") {
      layout.order = {3, 2, 0, 1, 4, 5};
      layout.torch = Permuted(layout.view, layout.order);
    }
    if (linear) {
      layout = LayoutOfLinear(layout.view, attributes.Int("transposed") != 0,
                              FlattenedImage(graph, flattens, node.inputs[0]));
    }
  }
  return layouts;
}

}  // namespace engine::weights
