// Ops that move elements, and reductions, as ONNX. Dimension 0 is that of samples: a Reshape takes it
// over (0), so that a model works on any number of them.
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "app/weights/onnx_writer.h"

namespace engine::weights {
namespace {

int32_t FirstAxis(const TensorSpec& x) {
  return x.batched != 0 ? 1 : 0;
}

// The shape of the output, with `samples` in place of their number.
std::string ShapeOfOutput(const NodeCall& call, int64_t samples) {
  const TensorSpec& y = call.Output();
  std::vector<int64_t> shape(y.shape.dims, y.shape.dims + y.shape.ndim);
  if (y.batched != 0) shape[0] = samples;
  return call.onnx.Ints(shape);
}

void Reshape(const NodeCall& call) {
  call.Out(call.onnx.Add("Reshape", {call.In(0), ShapeOfOutput(call, 0)}));
}

void Expand(const NodeCall& call) {
  call.Out(call.onnx.Add("Expand", {call.In(0), ShapeOfOutput(call, 1)}));
}

// Without an order the axes behind that of samples are reversed.
void Transpose(const NodeCall& call) {
  const int32_t first = FirstAxis(call.Input()), ndim = call.Input().shape.ndim;
  std::vector<int64_t> order = call.attributes.Ints("order");
  for (int32_t i = ndim - 1; order.size() < static_cast<size_t>(ndim - first); --i) {
    order.push_back(i);
  }
  if (first == 1) order.insert(order.begin(), 0);
  call.Out(call.onnx.Transpose(call.In(0), order));
}

// What all samples share, (1, ...), once for each of them, as many as `samples` has.
std::string ForEachSample(const NodeCall& call, size_t i, const std::string& samples,
                          Layout layout) {
  OnnxWriter& onnx = call.onnx;
  const Shape& shared = call.Input(i).shape;
  const std::string count =
      onnx.Add("Shape", {samples}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  const std::string ones = onnx.Ints(std::vector<int64_t>(static_cast<size_t>(shared.ndim) - 1, 1));
  return onnx.Add("Expand",
                  {call.In(i, layout), onnx.Add("Concat", {count, ones}, {{"axis", int64_t{0}}})});
}

// Images stay what they are.
void Concat(const NodeCall& call) {
  const int32_t ndim = call.Output().shape.ndim;
  int64_t axis = call.attributes.Int("axis", -1);
  if (axis < 0) axis += ndim;
  const bool image = call.onnx.LayoutOf(call.node.inputs[0]) == Layout::kChannelsFirst;
  const Layout layout = image ? Layout::kChannelsFirst : Layout::kOurs;
  if (image && axis > 0) axis = axis == ndim - 1 ? 1 : axis + 1;
  size_t batched = 0;  // an input that has samples, if one does
  while (batched + 1 < call.node.inputs.size() && call.Input(batched).batched == 0) ++batched;
  std::vector<std::string> inputs;
  for (size_t i = 0; i < call.node.inputs.size(); ++i) {
    const bool shared = call.Input(i).batched == 0 && call.Output().batched != 0;
    inputs.push_back(shared ? ForEachSample(call, i, call.In(batched, layout), layout)
                            : call.In(i, layout));
  }
  call.Out(call.onnx.Add("Concat", inputs, {{"axis", axis}}), layout);
}

void Slice(const NodeCall& call) {
  const auto one = [&](const char* name) { return call.onnx.Ints({call.attributes.Int(name)}); };
  call.Out(
      call.onnx.Add("Slice", {call.In(0), one("begin"), one("end"), one("axis"), one("step")}));
}

void Gather(const NodeCall& call) {
  call.Out(call.onnx.Add("Gather", {call.In(0), call.onnx.Ints(call.attributes.Ints("indices"))},
                         {{"axis", call.attributes.Int("axis", -1)}}));
}

void Pad(const NodeCall& call) {
  const auto ndim = static_cast<size_t>(call.Input().shape.ndim);
  std::vector<int64_t> pads;
  for (const char* name : {"before", "after"}) {
    std::vector<int64_t> list = call.attributes.Ints(name);
    list.insert(list.begin(), ndim - (list.empty() ? 0 : list.size()), 0);
    pads.insert(pads.end(), list.begin(), list.end());
  }
  const auto value = static_cast<float>(call.attributes.Float("value"));
  call.Out(call.onnx.Add("Pad", {call.In(0), call.onnx.Ints(pads), call.onnx.Scalar(value)},
                         {{"mode", std::string(call.attributes.Word("mode", "constant"))}}));
}

void Reduce(const NodeCall& call) {
  std::vector<int64_t> axes = call.attributes.Ints("axes");
  if (axes.empty()) {
    axes.resize(static_cast<size_t>(call.Input().shape.ndim - FirstAxis(call.Input())));
    std::iota(axes.begin(), axes.end(), FirstAxis(call.Input()));
  }
  std::vector<std::string> inputs = {call.In(0)};
  std::vector<OnnxAttribute> attributes = {{"keepdims", call.attributes.Int("keep")}};
  // Of these ops one has its axes as an input in opset 17.
  if (call.node.op_name == "reduce_sum") {
    inputs.push_back(call.onnx.Ints(axes));
  } else {
    attributes.emplace_back("axes", axes);
  }
  call.Out(call.onnx.Add(call.type, inputs, attributes));
}

constexpr OpWriter kArrayWriters[] = {
    {"reshape", Reshape},
    {"expand", Expand},
    {"transpose", Transpose},
    {"concat", Concat},
    {"slice", Slice},
    {"gather", Gather},
    {"pad", Pad},
    {"reduce_mean", Reduce, "ReduceMean"},
    {"reduce_sum", Reduce, "ReduceSum"},
    {"reduce_max", Reduce, "ReduceMax"},
};

}  // namespace

std::span<const OpWriter> ArrayWriters() {
  return kArrayWriters;
}

}  // namespace engine::weights
