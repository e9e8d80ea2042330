// Convolutions, pools and resizing: channels are last in the engine, and planes have rows and columns
// (an axis alone is a plane with one row).
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lowering.h"

namespace engine::onnx {
namespace {

constexpr const char* kCoordinates = "coordinate_transformation_mode";

struct Plane {
  ModelValue input;  // (B, H, W, C)
  Layout layout;     // of the value: memory in that order
  bool is_line = false;
};

Result<Plane> PlaneOf(Lowering& lowering, const Node& node, const Value& x) {
  const std::vector<std::vector<int>>& dims = x.layout.dims;
  if (dims.size() != 3 && dims.size() != 4) {
    return node.Unsupported(
        "works on %zu dimensions; planes (N, C, H, W) and "
        "lines (N, C, L) are known",
        dims.size());
  }
  if (dims[0] != std::vector{0} || !x.layout.batched) {
    return node.Unsupported(
        "needs a batch of samples in dimension 0, and nothing "
        "else there");
  }
  Plane plane{.layout = x.layout, .is_line = dims.size() == 3};
  const Groups groups = {dims[0], plane.is_line ? std::vector<int>() : dims[2], dims.back(),
                         dims[1]};
  ENGINE_ASSIGN_OR_RETURN(plane.input, lowering.Arrange(node, x, groups));
  return plane;
}

// What an op gave as (B, H, W, C), called (N, C, H, W) or (N, C, L).
Status GivePlane(Lowering& lowering, const Node& node, const Plane& plane, ModelValue made) {
  const Shape shape = lowering.Spec(made).shape;
  const Dims line = {lowering.samples(), shape[2], shape[3]};
  const Dims whole = {lowering.samples(), shape[1], shape[2], shape[3]};
  Layout layout = Layout::RowMajor(plane.is_line ? line : whole, true, lowering.samples());
  const int64_t order[] = {0, plane.is_line ? 2 : 3, 1, 2};
  layout.Permute(std::span(order).first(plane.is_line ? 3 : 4));
  return Give(lowering, node, made, std::move(layout));
}

// A list of an attribute as rows and columns.
Dims RowsAndColumns(const Plane& plane, Dims list, int64_t otherwise) {
  if (list.empty()) list.assign(plane.is_line ? 1 : 2, otherwise);
  if (plane.is_line) list.insert(list.begin(), otherwise);
  return list;
}

struct Window {
  Dims kernel, stride, dilation;  // rows, columns
  Dims padding;                   // top, left, bottom, right
};

// Padding is as given, or as `auto_pad` says for a window with these extents over this input.
Result<Window> WindowOf(const Node& node, const Plane& plane, const Shape& input, Dims extents) {
  Window window{.kernel = RowsAndColumns(plane, std::move(extents), 1),
                .stride = RowsAndColumns(plane, node.Ints("strides"), 1),
                .dilation = RowsAndColumns(plane, node.Ints("dilations"), 1),
                .padding = node.Ints("pads", Dims(plane.is_line ? 2 : 4, 0))};
  auto& [kernel, stride, dilation, pads] = window;
  if (pads.size() != (plane.is_line ? 2u : 4u) || kernel.size() != 2 || stride.size() != 2 ||
      dilation.size() != 2 || std::ranges::min(stride) < 1) {
    return node.Damaged("has lists of a wrong length, or a stride below 1");
  }
  if (plane.is_line) pads = {0, pads[0], 0, pads[1]};
  const std::string automatic = node.Text("auto_pad", "NOTSET");
  for (size_t i = 0; i < 2 && automatic.starts_with("SAME"); ++i) {
    const int64_t extent = input[static_cast<int32_t>(i) + 1];
    const int64_t outputs = (extent + stride[i] - 1) / stride[i];
    const int64_t all = std::max<int64_t>(
        (outputs - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1 - extent, 0);
    pads[i] = automatic == "SAME_LOWER" ? all - all / 2 : all / 2;
    pads[i + 2] = all - pads[i];
  }
  return window;
}

Status LowerConv(Lowering& lowering, const Node& node) {
  const bool transposed = node.type() == "ConvTranspose";
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Value weight, lowering.Input(node, 1));
  ENGINE_ASSIGN_OR_RETURN(const Value bias, OptionalInput(lowering, node, 2));
  ENGINE_ASSIGN_OR_RETURN(const Plane plane, PlaneOf(lowering, node, x));
  const Dims shape = weight.Shape();
  if (shape.size() != x.Shape().size()) return node.Damaged("has a weight of another rank");
  Dims extents(shape.begin() + 2, shape.end());
  if (node.Ints("kernel_shape", extents) != extents) {
    return node.Damaged("has a kernel_shape that is not that of its weight");
  }
  const Dims more = RowsAndColumns(plane, node.Ints("output_padding"), 0);
  ENGINE_ASSIGN_OR_RETURN(
      const Window window,
      WindowOf(node, plane, lowering.Spec(plane.input).shape, std::move(extents)));
  const int64_t groups = node.Int("group", 1);
  const int64_t channels = transposed ? shape[1] * groups : shape[0];
  const int64_t inputs = transposed ? shape[0] : shape[1] * groups;
  if (inputs != x.Shape()[1]) {
    return node.Misfit(
        "convolves %lld channels, but the data gives it %lld: it was "
        "exported for other data",
        static_cast<long long>(inputs), static_cast<long long>(x.Shape()[1]));
  }
  if (transposed &&
      (!node.Ints("output_shape").empty() || node.Text("auto_pad", "NOTSET").starts_with("SAME"))) {
    return node.Unsupported("has an output_shape or auto_pad; export pads instead");
  }
  const auto& [kernel, stride, dilation, padding] = window;
  Attributes attributes = {kit::Int("channels", channels),      IntsAttribute("kernel", kernel),
                           IntsAttribute("stride", stride),     IntsAttribute("padding", padding),
                           IntsAttribute("dilation", dilation), kit::Int("groups", groups),
                           kit::Bool("bias", node.HasInput(2))};
  if (transposed) {
    attributes.push_back(IntsAttribute("output_padding", more));
  } else {
    attributes.push_back(kit::Word("layout", "oihw"));
  }
  Groups weight_groups = weight.layout.dims;
  if (plane.is_line) weight_groups.insert(weight_groups.begin() + 2, std::vector<int>());
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made,
                          lowering.EmitLayer(node, transposed ? "conv_transpose2d" : "conv2d",
                                             plane.input, weight, weight_groups, !plane.is_line,
                                             node.HasInput(2) ? &bias : nullptr, attributes));
  return GivePlane(lowering, node, plane, made);
}

Status LowerPool(Lowering& lowering, const Node& node) {
  const bool is_max = node.type() == "MaxPool";
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Plane plane, PlaneOf(lowering, node, x));
  ENGINE_ASSIGN_OR_RETURN(
      const Window window,
      WindowOf(node, plane, lowering.Spec(plane.input).shape, node.Ints("kernel_shape")));
  const auto& [kernel, stride, dilation, padding] = window;
  Attributes attributes = {IntsAttribute("kernel", kernel), IntsAttribute("stride", stride),
                           IntsAttribute("padding", padding),
                           kit::Bool("ceil", node.Int("ceil_mode", 0) != 0)};
  if (is_max) {
    attributes.push_back(IntsAttribute("dilation", dilation));
  } else {
    attributes.push_back(kit::Bool("count_padding", node.Int("count_include_pad", 0) != 0));
  }
  ENGINE_ASSIGN_OR_RETURN(
      const ModelValue made,
      lowering.Emit(node.name(), is_max ? "max_pool" : "avg_pool", {plane.input}, attributes));
  return GivePlane(lowering, node, plane, made);
}

Status LowerGlobalPool(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Plane plane, PlaneOf(lowering, node, x));
  const char* const op = node.type() == "GlobalMaxPool" ? "global_max_pool" : "global_avg_pool";
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made, lowering.Emit(node.name(), op, {plane.input}));
  Dims shape = x.Shape();
  std::fill(shape.begin() + 2, shape.end(), 1);
  return Give(lowering, node, made, Layout::RowMajor(shape, true, lowering.samples()));
}

// Extents of the result, from the sizes or the scales of the node: (N, C, H, W) with N and C as they
// are. Where a scale gives no whole number of elements, ONNX goes on with the scale, and the op with the
// ratio of extents.
Result<Dims> ResizedShape(Lowering& lowering, const Node& node, const Dims& shape) {
  ENGINE_ASSIGN_OR_RETURN(const auto scales, lowering.Constant(node, 2));
  ENGINE_ASSIGN_OR_RETURN(const auto sizes, lowering.Constant(node, 3));
  const auto rank = static_cast<int64_t>(shape.size());
  Dims result = shape;
  if (sizes != nullptr && sizes->count() == rank) {
    result = sizes->Ints();
  } else if (scales != nullptr && scales->count() == rank) {
    for (size_t i = 0; i < shape.size(); ++i) {
      const double extent = static_cast<double>(shape[i]) * scales->values[i];
      if (!(extent >= 1 && extent <= 1e9)) return node.Damaged("has a scale that cannot be");
      result[i] = static_cast<int64_t>(std::floor(extent));
      if (extent - std::floor(extent) < 1e-4 || node.Text(kCoordinates, "") == "align_corners") {
        continue;
      }
      return node.Unsupported("scales %lld elements by %g, which is no whole number of them",
                              static_cast<long long>(shape[i]), scales->values[i]);
    }
  } else {
    return node.Unsupported("has neither scales nor sizes of all dimensions");
  }
  if (result[0] == shape[0] && result[1] == shape[1]) return result;
  return node.Unsupported("resizes samples or channels");
}

Status LowerResize(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Plane plane, PlaneOf(lowering, node, x));
  ENGINE_ASSIGN_OR_RETURN(const Dims shape, ResizedShape(lowering, node, x.Shape()));
  const std::string mode = node.Text("mode", "nearest");
  std::string coordinates = node.Text(kCoordinates, "half_pixel");
  // The same but for one element, which is the first then, and not the one in the middle.
  if (coordinates == "pytorch_half_pixel" &&
      std::find(shape.begin() + 2, shape.end(), 1) == shape.end()) {
    coordinates = "half_pixel";
  }
  const bool asymmetric = coordinates == "asymmetric";
  const std::string rounded = node.Text("nearest_mode", "round_prefer_floor");
  const bool is_known = asymmetric || coordinates == "half_pixel" || coordinates == "align_corners";
  const bool is_nearest =
      mode == "nearest" && rounded == (asymmetric ? "floor" : "round_prefer_floor");
  if (!is_known || (!is_nearest && mode != "linear")) {
    return node.Unsupported(
        "resizes by mode '%s' (%s) with coordinates '%s'; linear is known with "
        "half_pixel, align_corners and asymmetric, and nearest with round_prefer_floor, "
        "for asymmetric with floor",
        mode.c_str(), rounded.c_str(), coordinates.c_str());
  }
  const Dims size = RowsAndColumns(plane, {shape.begin() + 2, shape.end()}, 1);
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made,
                          lowering.Emit(node.name(), "resize", {plane.input},
                                        {IntsAttribute("size", size),
                                         kit::Word("mode", mode == "linear" ? "bilinear" : mode),
                                         kit::Word("coordinates", coordinates)}));
  return GivePlane(lowering, node, plane, made);
}

constexpr HandlerEntry kImageHandlers[] = {
    {"AveragePool,MaxPool", LowerPool},
    {"Conv,ConvTranspose", LowerConv},
    {"GlobalAveragePool,GlobalMaxPool", LowerGlobalPool},
    {"Resize", LowerResize},
};

}  // namespace

std::span<const HandlerEntry> ImageHandlers() {
  return kImageHandlers;
}

}  // namespace engine::onnx
