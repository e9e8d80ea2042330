// A model as a static graph of op calls. It knows no device, rank or batch but the full one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/op.h"

namespace engine::graph {

using ValueId = int32_t;
using NodeId = int32_t;
constexpr int32_t kNone = -1;

enum class ValueKind { kInput, kParameter, kActivation };

struct Value {
  std::string name;
  TensorSpec spec;
  ValueKind kind = ValueKind::kActivation;
  NodeId producer = kNone;    // kActivation
  int32_t parameter = kNone;  // kParameter: index in Graph::parameters
  ValueId again = kNone;      // what Node::recomputed makes in its place; else backward reads it
};

// Values of parameters have the dtype that ops read (ParameterSpec::dtype); what is kept and
// updated is float32, as gradients of parameters are.
struct Parameter {
  std::string name;  // "block0.attn.qkv.weight"
  ValueId value = kNone;
  Shape shape;
  std::vector<float> values;  // to begin with; or empty, for those that `initial` gives
  // Element `i`: a function of a key, which is that of a name and a seed, and of nothing else.
  std::function<float(uint64_t key, uint64_t i)> initial;
  bool decay = true;
  float learning_rate_scale = 1;  // multiplies the rate of a step
  float weight_decay_scale = 1;   // multiplies the optimizer's, of those that have `decay`
  bool trainable = true;
  // Its op changes it in the forward pass while it trains, also in a frozen layer: running
  // statistics. It is not trainable, and kept in checkpoints like the others.
  bool buffer = false;

  bool constant() const { return initial == nullptr; }
  // UpdateCall::weight_decay_scale.
  float DecayScale() const { return decay ? weight_decay_scale : 0; }
};

// One op with its inputs (data, then parameters) and outputs.
struct Node {
  std::string name;  // of the layer: "block0.attn.qkv"
  std::string op_name;
  std::string plugin = "a plugin";  // "plugin 'x'", which made `op`; for messages
  std::unique_ptr<Op> op;
  OpSignature signature;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  int32_t priority = 0;
  // Nodes that follow each other and have the same number are a block. Those of it that are
  // recomputed keep nothing for backward, which begins with another forward call of each.
  int32_t block = kNone;
  bool recomputed = false;
};

struct GraphOutput {
  std::string name;
  ValueId value = kNone;
};

// Nodes are in the order in which they were built, which is a topological order.
struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Parameter> parameters;
  // The first input and the first target of a sample, and further inputs and then further targets.
  // There are no targets in a graph for inference.
  ValueId input = kNone;
  ValueId target = kNone;
  std::vector<ValueId> others;
  // What may be read after the forward pass; `logits` is the first of them.
  std::vector<GraphOutput> outputs;
  ValueId logits = kNone;
  ValueId loss = kNone;  // kNone in a graph for inference
  int64_t max_samples = 0;

  // Whether ops read a copy of `parameter` in bfloat16.
  bool IsReadRounded(const Parameter& parameter) const {
    return values[parameter.value].spec.dtype != DType::kFloat32;
  }
};

}  // namespace engine::graph
