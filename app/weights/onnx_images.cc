// Ops on images as ONNX: channels first.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "app/weights/onnx_writer.h"

namespace engine::weights {
namespace {

constexpr Layout kFirst = Layout::kChannelsFirst;

// Over the rows and the columns of a plane, as interfaces/kit/plane_window.h reads the attributes.
struct PlaneWindow {
  std::vector<int64_t> kernel, stride, dilation;
  std::vector<int64_t> padding;  // top, left, bottom, right

  explicit PlaneWindow(const Attributes& attributes)
      : kernel(Both(attributes.Ints("kernel"))),
        stride(Both(attributes.Ints("stride", {1}))),
        dilation(Both(attributes.Ints("dilation", {1}))),
        padding(attributes.Ints("padding", {0})) {
    if (padding.size() < 4) {
      padding = Both(padding);
      padding.insert(padding.end(), {padding[0], padding[1]});
    }
    for (size_t i = 0; i < 4; ++i) {
      if (padding[i] < 0) padding[i] = kernel[i % 2] / 2 * dilation[i % 2];
    }
    for (size_t i = 0; i < 2; ++i) {
      if (stride[i] == 0) stride[i] = kernel[i];
    }
  }
  static std::vector<int64_t> Both(const std::vector<int64_t>& list) {
    return {list.front(), list.back()};
  }
  std::vector<OnnxAttribute> ToOnnx() const {
    return {
        {"kernel_shape", kernel}, {"strides", stride}, {"pads", padding}, {"dilations", dilation}};
  }
};

// A convolution that does the batch norm behind it, whose statistics are those of training: w / s and
// bias - mean / s with s = sqrt(variance + epsilon) / weight.
void FoldedConv(const NodeCall& call, const graph::Node& norm, double epsilon,
                const std::vector<OnnxAttribute>& attributes) {
  OnnxWriter& onnx = call.onnx;
  const auto values = [&](const graph::Node& node, size_t i) {
    return onnx.TorchValues(call.graph.values[node.inputs[i]].parameter);
  };
  const int32_t parameter = call.graph.values[call.node.inputs[1]].parameter;
  const std::vector<float> gamma = values(norm, 1), beta = values(norm, 2), mean = values(norm, 3),
                           variance = values(norm, 4);
  std::vector<float> weight = onnx.TorchValues(parameter);
  std::vector<float> bias(gamma.size(), 0.0f);
  if (call.node.inputs.size() > 2) bias = values(call.node, 2);
  const size_t of_channel = weight.size() / gamma.size();
  for (size_t c = 0; c < gamma.size(); ++c) {
    const double factor = gamma[c] / std::sqrt(variance[c] + epsilon);
    for (size_t i = 0; i < of_channel; ++i) {
      float& w = weight[c * of_channel + i];
      w = static_cast<float>(w * factor);
    }
    bias[c] = static_cast<float>((static_cast<double>(bias[c]) - mean[c]) * factor + beta[c]);
  }
  const std::string& name = call.node.name;
  call.Out(onnx.Add("Conv",
                    {call.In(0, kFirst),
                     onnx.Initialiser(name + ".weight", onnx.TorchShape(parameter), weight),
                     onnx.Initialiser(name + ".bias", {static_cast<int64_t>(bias.size())}, bias)},
                    attributes),
           kFirst);
}

void Conv(const NodeCall& call) {
  OnnxWriter& onnx = call.onnx;
  std::vector<OnnxAttribute> attributes = PlaneWindow(call.attributes).ToOnnx();
  attributes.emplace_back("group", call.attributes.Int("groups", 1));
  if (const auto folded = onnx.folded.find(&call.node); folded != onnx.folded.end()) {
    const auto& [norm, epsilon] = folded->second;
    return FoldedConv(call, *norm, epsilon, attributes);
  }
  std::string weight = call.TorchIn(1);
  const bool hwio = call.attributes.Word("layout", "hwio") == "hwio";
  if (hwio && !call.MakesParameters()) weight = onnx.Transpose(weight, {3, 2, 0, 1});
  std::vector<std::string> inputs = {call.In(0, kFirst), weight};
  if (call.node.inputs.size() > 2) inputs.push_back(call.In(2));
  call.Out(onnx.Add("Conv", inputs, attributes), kFirst);
}

void ConvTranspose(const NodeCall& call) {
  std::vector<OnnxAttribute> attributes = PlaneWindow(call.attributes).ToOnnx();
  attributes.emplace_back("group", call.attributes.Int("groups", 1));
  attributes.emplace_back("output_padding",
                          PlaneWindow::Both(call.attributes.Ints("output_padding", {0})));
  std::vector<std::string> inputs = {call.In(0, kFirst), call.In(1)};
  if (call.node.inputs.size() > 2) inputs.push_back(call.In(2));
  call.Out(call.onnx.Add("ConvTranspose", inputs, attributes), kFirst);
}

// Where the last window reaches beyond the padding, more padding says the same without ONNX's
// ceil_mode, which runtimes take differently. It does not where that counts in a mean.
void Pool(const NodeCall& call) {
  PlaneWindow window(call.attributes);
  const bool mean = call.node.op_name == "avg_pool";
  const bool counts = mean && call.attributes.Int("count_padding", 1) != 0;
  bool ceil = call.attributes.Int("ceil") != 0;
  if (ceil && !counts) {
    ceil = false;
    for (size_t i = 0; i < 2; ++i) {
      const auto axis = static_cast<int32_t>(i) + 1;
      const int64_t reach = (window.kernel[i] - 1) * window.dilation[i] + 1;
      const int64_t needed = (call.Output().shape[axis] - 1) * window.stride[i] + reach -
                             call.Input().shape[axis] - window.padding[i];
      window.padding[2 + i] = std::max(window.padding[2 + i], needed);
    }
  }
  std::vector<OnnxAttribute> attributes = window.ToOnnx();
  if (mean) {
    attributes.pop_back();  // dilations, which a mean does not have
    attributes.emplace_back("count_include_pad", int64_t{counts});
  }
  attributes.emplace_back("ceil_mode", int64_t{ceil});
  call.Out(call.onnx.Add(call.type, {call.In(0, kFirst)}, attributes), kFirst);
}

void GlobalPool(const NodeCall& call) {
  call.Out(call.onnx.Add("Flatten", {call.onnx.Add(call.type, {call.In(0, kFirst)})}));
}

void Resize(const NodeCall& call) {
  OnnxWriter& onnx = call.onnx;
  const std::string x = call.In(0, kFirst);
  const std::string mode(call.attributes.Word("mode")), where(call.attributes.Word("coordinates"));
  const std::vector<OnnxAttribute> attributes = {
      {"mode", mode == "bilinear" ? "linear" : "nearest"},
      {"coordinate_transformation_mode", where},
      {"nearest_mode", where == "asymmetric" ? "floor" : "round_prefer_floor"}};
  if (call.attributes.Ints("size").empty()) {
    const auto scale = static_cast<float>(call.attributes.Float("scale"));
    return call.Out(onnx.Add("Resize", {x, "", onnx.Floats({4}, {1, 1, scale, scale})}, attributes),
                    kFirst);
  }
  const Shape& y = call.Output().shape;
  const std::string batch = onnx.Add("Shape", {x}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  const std::string size =
      onnx.Add("Concat", {batch, onnx.Ints({y[3], y[1], y[2]})}, {{"axis", int64_t{0}}});
  call.Out(onnx.Add("Resize", {x, "", "", size}, attributes), kFirst);
}

void BatchNorm(const NodeCall& call) {
  const std::string x = call.In(0, kFirst);
  for (const auto& [conv, norm] : call.onnx.folded) {
    if (norm.first == &call.node) return call.Out(x, kFirst);
  }
  const auto epsilon = static_cast<float>(call.attributes.Float("epsilon", 1e-5));
  call.Out(call.onnx.Add("BatchNormalization", {x, call.In(1), call.In(2), call.In(3), call.In(4)},
                         {{"epsilon", epsilon}}),
           kFirst);
}

// Instance norm of an image whose channels are the groups.
void GroupNorm(const NodeCall& call) {
  OnnxWriter& onnx = call.onnx;
  const Shape& x = call.Input().shape;
  const int64_t groups = call.attributes.Int("groups");
  const auto epsilon = static_cast<float>(call.attributes.Float("epsilon", 1e-5));
  const auto all = [&](float value) {
    return onnx.Floats({groups}, std::vector<float>(static_cast<size_t>(groups), value));
  };
  const std::string normal = onnx.Add(
      "InstanceNormalization",
      {onnx.Add("Reshape", {call.In(0, kFirst), onnx.Ints({0, groups, -1})}), all(1), all(0)},
      {{"epsilon", epsilon}});
  std::vector<int64_t> shape = {0, x[-1]}, of_channels = {x[-1]};
  for (int32_t i = 1; i + 1 < x.ndim; ++i) {
    shape.push_back(x[i]);
    of_channels.push_back(1);
  }
  const auto per_channel = [&](size_t i) {
    return onnx.Add("Reshape", {call.In(i), onnx.Ints(of_channels)});
  };
  const std::string scaled =
      onnx.Add("Mul", {onnx.Add("Reshape", {normal, onnx.Ints(shape)}), per_channel(1)});
  call.Out(onnx.Add("Add", {scaled, per_channel(2)}), kFirst);
}

// The layouts are two names of one tensor.
void ToChannelsLast(const NodeCall& call) {
  call.Out(call.In(0), kFirst);
}
void ToChannelsFirst(const NodeCall& call) {
  call.Out(call.In(0, kFirst));
}

// The layers that read it have their weights in the order of PyTorch, if all that read it are such.
void Flatten(const NodeCall& call) {
  const bool first = call.onnx.flattens_for_linear(call.id);
  call.Out(call.onnx.Add("Flatten", {call.In(0, first ? kFirst : Layout::kOurs)}));
}

constexpr OpWriter kImageWriters[] = {
    {"conv2d", Conv},
    {"conv_transpose2d", ConvTranspose},
    {"max_pool", Pool, "MaxPool"},
    {"avg_pool", Pool, "AveragePool"},
    {"global_avg_pool", GlobalPool, "GlobalAveragePool"},
    {"global_max_pool", GlobalPool, "GlobalMaxPool"},
    {"resize", Resize},
    {"batch_norm", BatchNorm},
    {"group_norm", GroupNorm},
    {"to_channels_last", ToChannelsLast},
    {"to_channels_first", ToChannelsFirst},
    {"flatten", Flatten},
};

}  // namespace

std::span<const OpWriter> ImageWriters() {
  return kImageWriters;
}

}  // namespace engine::weights
