// From the nodes of a file to ops of the engine. A value is made when someone asks for it: so a handler
// that finds a pattern ending in its node asks for what the pattern begins with, and the nodes in
// between never become ops.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model.h"
#include "engine/status.h"
#include "graph.h"
#include "kit/model.h"
#include "layout.h"
#include "model_file.h"
#include "tensor.h"

namespace engine::onnx {

// What a name of the file stands for: a constant, a parameter of the file, or a value of the engine.
struct Value {
  std::shared_ptr<const Tensor> constant;
  std::string parameter;  // the initialiser's name
  ModelValue engine = -1;
  Layout layout;

  Dims Shape() const { return layout.Shape(); }
};

// The dimensions of a tensor of the engine: axes of a layout each, none for an extent of 1.
using Groups = std::vector<std::vector<int>>;
using Attributes = std::vector<OptionValue>;

// An op that reads one tensor.
struct Step {
  std::string_view op;
  Attributes attributes = {};
};
inline Step Scaled(double factor, double offset) {
  return {"scale", {kit::Float("factor", factor), kit::Float("offset", offset)}};
}
inline Step Clipped(double min, double max) {
  return {"clip", {kit::Float("min", min), kit::Float("max", max)}};
}

// Where the values of a parameter come from: an initialiser, or a constant.
struct Source {
  const proto::TensorProto* tensor = nullptr;
  std::shared_ptr<const Tensor> constant;
};

class Lowering {
 public:
  // All are borrowed. `samples`: the batch that shape arithmetic counts on.
  Lowering(ModelBuilder& builder, const ModelFile& file, const Graph& graph, int64_t samples,
           bool sync_batch_norm)
      : builder_(builder),
        file_(file),
        graph_(graph),
        samples_(samples),
        sync_batch_norm_(sync_batch_norm) {}

  const Graph& graph() const { return graph_; }
  const ModelFile& file() const { return file_; }
  bool sync_batch_norm() const { return sync_batch_norm_; }
  int64_t samples() const { return samples_; }
  ModelBuilder& builder() { return builder_; }
  // Of parameters that do not have the name of their initialiser.
  const std::map<std::string, Source>& sources() const { return sources_; }

  // ---- Values

  void Set(const std::string& name, Value value) { values_[name] = std::move(value); }
  // A constant.
  Value ValueOf(Tensor tensor) const;
  // Makes it, and what it is made of.
  Result<Value> Get(const std::string& name);
  Result<Value> Input(const Node& node, size_t i);
  // Of a node's input that must not depend on samples; null where it is left out. kUnsupported.
  Result<std::shared_ptr<const Tensor>> Constant(const Node& node, size_t i);
  // The only element of a constant, if it is one. Asks for nothing that depends on samples.
  bool IsScalar(const std::string& name, double* value);

  // ---- Ops

  // The first output of one more op, called `name` or, where that is taken, nearly so.
  Result<ModelValue> Emit(const std::string& name, std::string_view op,
                          const std::vector<ModelValue>& inputs, const Attributes& attributes = {});
  // An op with parameters: weight, and bias unless it is null, both of the file. If they are called
  // "<layer>.weight" and "<layer>.bias", nobody has them yet, and the op would make the weight in just
  // the order that it has (`natural`), the op is that layer; else it is given them, weight as `groups`.
  Result<ModelValue> EmitLayer(const Node& node, std::string_view op, ModelValue x,
                               const Value& weight, const Groups& groups, bool natural,
                               const Value* bias, const Attributes& attributes);
  // A norm: its parameters, of the file or constants, are float32. Without a bias it has zeros.
  Result<ModelValue> EmitNorm(const Node& node, std::string_view op, ModelValue x,
                              const Value& weight, const Value* bias, const Attributes& attributes);
  const std::string& LastName() const { return last_name_; }  // of the op that Emit made
  // Remembers that `parameter`, which an op has made, is this initialiser. False if it is another
  // parameter already.
  bool Bind(const std::string& parameter, const std::string& initializer);

  // ---- Memory

  TensorSpec Spec(ModelValue value) const { return builder_.Spec(value); }
  // The value with memory in this order, as a tensor of these dimensions. kUnsupported where samples
  // would not be in front.
  Result<ModelValue> Arrange(const Node& node, const Value& value, const Groups& groups);
  // As it is: in whatever shape it has.
  Result<ModelValue> Engine(const Value& value);
  // Each dimension is one axis, beside that of samples; memory is in the order of dimensions, or of
  // their outermost axes. kPlugin where samples are not outermost in their dimension.
  Result<Value> OneAxisEach(const Node& node, const Value& value, bool in_order);
  // Align, after moving elements where that is needed. kUnsupported for shapes that do not broadcast.
  Result<std::vector<std::vector<Column>>> AlignAll(const Node& node,
                                                    std::span<Value* const> values, int skipped);
  // Tensors of the engine that broadcast as the values do, and the layout of what an op makes of them
  // element by element.
  Result<std::vector<ModelValue>> Broadcast(const Node& node, std::vector<Value> values,
                                            Layout* result);

 private:
  Status Lower(const Node& node);
  Result<ModelValue> MakeParameter(const std::string& name, DType dtype);
  Result<ModelValue> MakeConstant(const std::shared_ptr<const Tensor>& tensor);
  Result<ModelValue> Transpose(const Node& node, const Value& value, std::span<const int> order);
  Result<ModelValue> TransposeTwice(const Node& node, const Value& value,
                                    std::span<const int> order, const Groups& runs);
  Result<ModelValue> Reshape(const Node& node, ModelValue value, const Shape& shape);

  ModelBuilder& builder_;
  const ModelFile& file_;
  const Graph& graph_;
  const int64_t samples_;
  const bool sync_batch_norm_;

  std::map<std::string, Value> values_;
  std::map<std::string, ModelValue> parameters_;              // of the file, by their initialiser
  std::map<std::pair<DType, Tensor>, ModelValue> constants_;  // equal ones are one
  std::map<std::pair<ModelValue, std::vector<int>>, ModelValue> transposed_;
  std::map<std::pair<ModelValue, Dims>, ModelValue> reshaped_;
  std::map<std::string, Source> sources_;
  std::set<std::string> names_;  // of layers
  std::string last_name_;
  DType activation_ = DType::kFloat32;
  int depth_ = 0;  // of Get in Get
};

// An empty value where the input is left out.
inline Result<Value> OptionalInput(Lowering& lowering, const Node& node, size_t i) {
  return node.HasInput(i) ? lowering.Get(node.input(i)) : Value();
}
// Sets output 0 of the node.
Status Give(Lowering& lowering, const Node& node, Value value);
inline Status Give(Lowering& lowering, const Node& node, ModelValue made, Layout layout) {
  return Give(lowering, node, Value{.engine = made, .layout = std::move(layout)});
}
// The same of one more op, called as the node is.
Status GiveOp(Lowering& lowering, const Node& node, std::string_view op,
              const std::vector<ModelValue>& inputs, const Attributes& attributes, Layout layout);
// One op after the other.
Result<ModelValue> EmitAll(Lowering& lowering, const Node& node, ModelValue x,
                           const std::vector<Step>& steps);

// The handler of a type, which sets the outputs of the node; null: there is none.
using Handler = Status (*)(Lowering& lowering, const Node& node);
Handler FindHandler(const std::string& type);

// What handlers of one file offer.
struct HandlerEntry {
  const char* types;  // separated by commas
  Handler handler;
};
std::span<const HandlerEntry> ElementwiseHandlers();
std::span<const HandlerEntry> ImageHandlers();
std::span<const HandlerEntry> MoveHandlers();
std::span<const HandlerEntry> NormHandlers();
std::span<const HandlerEntry> ProductHandlers();

// Each axis of an order a dimension; adjacent ones, but not samples nor the last `kept`, are put
// together where there would be more than `most`.
Groups OneEach(const Layout& layout, std::span<const int> order, size_t kept = 0,
               size_t most = kMaxDims);
// An attribute that is a list; `values` is borrowed.
inline OptionValue IntsAttribute(std::string_view name, const Dims& values) {
  return {.name = name, .type = OptionType::kInts, .integers = values};
}

}  // namespace engine::onnx
