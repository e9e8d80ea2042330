#include "core/graph/program.h"

#include <algorithm>
#include <utility>

namespace engine::graph {
namespace {

// Walks the forward nodes backwards, once, and gathers for each value the contributions to its
// gradient.
class Differentiator {
 public:
  explicit Differentiator(const Graph& graph)
      : graph_(graph),
        wanted_(graph.values.size(), false),
        gradient_(graph.values.size(), kNone),
        forward_(graph.nodes.size(), kNone) {}

  Program Run() {
    program_ = ForwardProgram(graph_);
    FindWanted();
    gradient_[graph_.loss] = AddGradient({.of = graph_.loss, .seed = true});
    for (size_t i = graph_.nodes.size(); i-- > 0;) AppendBackward(static_cast<NodeId>(i));
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      program_.of_parameter[i] = gradient_[graph_.parameters[i].value];
    }
    FindUsers();
    return std::move(program_);
  }

 private:
  // A value wants a gradient if a trainable parameter is upstream of it. One pass is enough: producers
  // stand before the nodes that read them.
  void FindWanted() {
    for (const Parameter& parameter : graph_.parameters)
      wanted_[parameter.value] = parameter.trainable;
    for (const Node& node : graph_.nodes) {
      bool any = false;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        any |= Has(node.signature.differentiable_inputs, i) && wanted_[node.inputs[i]];
      }
      for (ValueId output : node.outputs) wanted_[output] = any;
    }
  }

  GradientId AddGradient(Gradient gradient) {
    program_.gradients.push_back(gradient);
    return static_cast<GradientId>(program_.gradients.size()) - 1;
  }

  // In reverse topological order: all contributions to the gradients of a node's outputs come before
  // its own backward instruction.
  void AppendBackward(NodeId id) {
    const Node& node = graph_.nodes[id];
    Instruction backward{.kind = InstructionKind::kBackward, .node = id, .forward = id};
    bool reached = false;
    for (ValueId output : node.outputs) {
      backward.output_grads.push_back(gradient_[output]);
      reached |= gradient_[output] != kNone;
    }
    if (!reached || !wanted_[node.outputs[0]]) return;
    if (std::exchange(block_, node.block) != node.block && node.block != kNone) {
      RecomputeBlock(id, *std::ranges::max_element(backward.output_grads));
    }
    if (forward_[id] != kNone) backward.forward = forward_[id];
    const size_t at = program_.instructions.size();
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const bool wanted = Has(node.signature.differentiable_inputs, i) && wanted_[node.inputs[i]];
      backward.input_grads.push_back(wanted ? Contribute(node, i, &backward) : kNone);
    }
    // Ahead of its additions.
    program_.instructions.insert(program_.instructions.begin() + static_cast<ptrdiff_t>(at),
                                 std::move(backward));
  }

  // Of a block that ends with `last`: what backward instructions, and the calls that are made again,
  // read. They wait for `gradient`, which comes into the block: sooner they would hold memory for
  // nothing, and the step before might still update what they read.
  void RecomputeBlock(NodeId last, GradientId gradient) {
    std::vector<bool> is_read(graph_.values.size());
    std::vector<NodeId> calls;
    for (NodeId id = last; id >= 0 && graph_.nodes[id].block == block_; --id) {
      const Node& node = graph_.nodes[id];
      const bool backward = wanted_[node.outputs[0]];
      bool again = backward && node.recomputed && node.signature.saved_bytes > 0;
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        const ValueId output = node.outputs[i];
        const bool reads = backward && Has(node.signature.backward_reads_outputs, i);
        again |= (reads || is_read[output]) && graph_.values[output].again != kNone;
      }
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const bool reads = backward && Has(node.signature.backward_reads_inputs, i);
        if (again || reads) is_read[node.inputs[i]] = true;
      }
      if (again) calls.push_back(id);
    }
    for (size_t i = calls.size(); i-- > 0;) {
      const auto at = static_cast<int32_t>(program_.instructions.size());
      forward_[calls[i]] = at;
      program_.instructions.push_back({.kind = InstructionKind::kRecompute,
                                       .node = calls[i],
                                       .forward = at,
                                       .source = gradient});
    }
  }

  // Where the backward of `node` writes the gradient of input `i`, and what is added behind it.
  GradientId Contribute(const Node& node, size_t i, Instruction* backward) {
    const ValueId value = node.inputs[i];
    GradientId& gradient = gradient_[value];
    if (gradient == kNone) return gradient = AddGradient({.of = value});
    GradientId part = kNone, source = backward->output_grads[0];
    if (!Has(node.signature.passes_gradient, i) || source == kNone) {
      // The same value twice in one call: the op could not tell the first write from the addition.
      bool twice = false;
      for (size_t j = 0; j < i; ++j) twice |= node.inputs[j] == value;
      if (Has(node.signature.accumulates, i) && !twice) {
        backward->accumulate |= 1u << i;
        return gradient;
      }
      part = source = AddGradient({.of = value, .partial = true});
    }
    program_.instructions.push_back({.kind = InstructionKind::kAdd,
                                     .node = backward->node,
                                     .target = gradient,
                                     .source = source});
    return part;
  }

  void FindUsers() {
    for (int32_t k = 0; k < static_cast<int32_t>(program_.instructions.size()); ++k) {
      for (ValueId input : graph_.nodes[program_.instructions[k].node].inputs) {
        const int32_t parameter = graph_.values[input].parameter;
        if (parameter == kNone || program_.of_parameter[parameter] == kNone) continue;
        std::vector<int32_t>& users = program_.users_of_parameter[parameter];
        if (users.empty() || users.back() != k) users.push_back(k);
      }
    }
  }

  const Graph& graph_;
  Program program_;
  std::vector<bool> wanted_;
  std::vector<GradientId> gradient_;  // per value, what its contributions so far went to
  std::vector<int32_t> forward_;      // per node: its kRecompute
  int32_t block_ = kNone;             // of the backward instructions at hand
};

}  // namespace

Program ForwardProgram(const Graph& graph) {
  Program program;
  for (NodeId i = 0; i < static_cast<NodeId>(graph.nodes.size()); ++i) {
    program.instructions.push_back({.kind = InstructionKind::kForward, .node = i, .forward = i});
  }
  program.forward_count = static_cast<int32_t>(graph.nodes.size());
  program.of_parameter.assign(graph.parameters.size(), kNone);
  program.users_of_parameter.resize(graph.parameters.size());
  return program;
}

Program Differentiate(const Graph& graph) {
  return Differentiator(graph).Run();
}

}  // namespace engine::graph
