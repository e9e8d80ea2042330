// A graph with its backward pass: the instructions of one training step, as one thread would run
// them.
#pragma once

#include <vector>

#include "core/graph/graph.h"

namespace engine::graph {

using GradientId = int32_t;

// Whether a mask of inputs or outputs (OpSignature) has bit `index`.
constexpr bool Has(uint32_t mask, size_t index) {
  return (mask >> index & 1u) != 0;
}

// The gradient of the loss with respect to one value. Partial ones exist where an op cannot add to
// what is there: an kAdd instruction brings them together.
struct Gradient {
  ValueId of = kNone;
  bool partial = false;
  bool seed = false;  // of the loss itself: given, not computed
};

enum class InstructionKind {
  kForward,    // node.op->Forward
  kRecompute,  // the same once more, for backward
  kBackward,   // node.op->Backward
  kAdd,        // target += source
};

struct Instruction {
  InstructionKind kind = InstructionKind::kForward;
  NodeId node = kNone;
  // The forward call of its node that what it reads comes from, or which it is itself; not of kAdd.
  int32_t forward = kNone;
  std::vector<GradientId> output_grads;  // kBackward: one per output, kNone where none arrives
  std::vector<GradientId> input_grads;   // kBackward: one per input, kNone where none is wanted
  uint32_t accumulate = 0;               // kBackward: inputs whose gradient is added to
  GradientId target = kNone;             // kAdd
  GradientId source = kNone;             // kAdd; kRecompute: comes after it, and does not read it

  // The value that it means by one of its node.
  ValueId Of(const Graph& graph, ValueId value) const {
    const ValueId again = graph.values[value].again;
    return kind == InstructionKind::kForward || again == kNone ? value : again;
  }
};

struct Program {
  std::vector<Gradient> gradients;
  std::vector<Instruction> instructions;  // forward ones first
  int32_t forward_count = 0;
  // Per parameter: kNone if frozen or not reached by the loss.
  std::vector<GradientId> of_parameter;
  // Per parameter with a gradient: every instruction that reads the parameter or adds to its
  // gradient. When all of them are done the gradient is complete and the parameter may change.
  std::vector<std::vector<int32_t>> users_of_parameter;
};

// Appends backward instructions in reverse order of the forward ones. Frozen parameters, values
// that the loss does not depend on and values that do not depend on a trainable parameter get no
// gradient and no instruction. Before the first backward instruction of a block come the forward
// calls of it that what follows needs once more.
Program Differentiate(const Graph& graph);

// The forward instructions alone, for evaluation and inference.
Program ForwardProgram(const Graph& graph);

}  // namespace engine::graph
