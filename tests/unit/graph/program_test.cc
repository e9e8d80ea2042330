#include "core/graph/program.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/graph/graphs.h"

namespace engine::test {
namespace {

class Differentiate : public ProgramTest {
 protected:
  // h is used by the residual sum and by op f.
  void FinishResidual(const std::string& op) {
    const ModelValue h = net.Apply("stem", "scale", {Net::kX});
    Finish(net.Apply("sum", "add", {h, net.Apply("f", op, {h})}));
  }

  // "forward a", "backward b", "add b": the instructions as words.
  std::vector<std::string> Words() const {
    const char* const kinds[] = {"forward ", "recompute ", "backward ", "add "};
    std::vector<std::string> words;
    for (const graph::Instruction& instruction : program.instructions) {
      words.push_back(kinds[static_cast<int>(instruction.kind)] +
                      graph.nodes[instruction.node].name);
    }
    return words;
  }

  const graph::Instruction& BackwardOf(const std::string& name) const {
    for (const graph::Instruction& instruction : program.instructions) {
      if (instruction.kind == graph::InstructionKind::kBackward &&
          graph.nodes[instruction.node].name == name) {
        return instruction;
      }
    }
    ADD_FAILURE() << "no backward of " << name;
    return program.instructions[0];
  }
};

using List = std::vector<std::string>;

TEST_F(Differentiate, GoesBackwardsOnceThroughAChain) {
  Finish(Chain(net, "scale", 3));
  EXPECT_EQ(Words(), (List{"forward l0", "forward l1", "forward l2", "forward loss",
                           "backward loss", "backward l2", "backward l1", "backward l0"}));
  EXPECT_EQ(program.forward_count, 4);
  EXPECT_EQ(program.users_of_parameter,
            (std::vector<std::vector<int32_t>>{{0, 7}, {1, 6}, {2, 5}}));
  // Nobody wants the gradient of the data.
  EXPECT_EQ(BackwardOf("l0").input_grads[0], graph::kNone);
  EXPECT_NE(BackwardOf("l1").input_grads[0], graph::kNone);
}

TEST_F(Differentiate, AFrozenStartNeedsNoWork) {
  Finish(Chain(net, "scale", 4), {"l0", "l1.weight"});
  EXPECT_EQ(Words(), (List{"forward l0", "forward l1", "forward l2", "forward l3", "forward loss",
                           "backward loss", "backward l3", "backward l2"}));
  EXPECT_EQ(BackwardOf("l2").input_grads[0], graph::kNone);
  EXPECT_EQ(program.of_parameter[0], graph::kNone);
  EXPECT_EQ(program.of_parameter[1], graph::kNone);
  EXPECT_TRUE(program.users_of_parameter[0].empty());
  EXPECT_NE(program.of_parameter[2], graph::kNone);
}

TEST_F(Differentiate, AFrozenMiddleOnlyPassesTheGradientOn) {
  Finish(Chain(net, "scale", 3), {"l1"});
  const graph::Instruction& frozen = BackwardOf("l1");
  EXPECT_NE(frozen.input_grads[0], graph::kNone);
  EXPECT_EQ(frozen.input_grads[1], graph::kNone);
}

TEST_F(Differentiate, LayersFreezeToo) {
  const ModelValue h = net.Apply("a", "scale", {Net::kX}, {}, {.trainable = 0});
  Finish(net.Apply("b", "scale", {h}, {}, {.priority = 3}));
  EXPECT_EQ(program.of_parameter[0], graph::kNone);
  EXPECT_EQ(graph.nodes[NodeNamed(graph, "b")].priority, 3);
}

TEST_F(Differentiate, WhatTheLossDoesNotReachIsLeftOut) {
  const ModelValue h = net.Apply("a", "scale", {Net::kX});
  net.Apply("dead", "scale", {h});
  Finish(net.Apply("b", "scale", {h}));
  EXPECT_EQ(program.of_parameter[1], graph::kNone);
  EXPECT_EQ(Words(), (List{"forward a", "forward dead", "forward b", "forward loss",
                           "backward loss", "backward b", "backward a"}));
}

TEST_F(Differentiate, AnOpThatCanAddsToTheGradientThatIsThere) {
  FinishResidual("scale");
  const graph::Instruction& f = BackwardOf("f");
  EXPECT_EQ(f.accumulate, 1u);
  EXPECT_EQ(f.input_grads[0], BackwardOf("sum").input_grads[0]);
  EXPECT_EQ(f.input_grads[0], BackwardOf("stem").output_grads[0]);
}

TEST_F(Differentiate, AnOpThatCannotWritesAPartThatIsAdded) {
  FinishResidual("scale_slow");
  EXPECT_EQ(Words(),
            (List{"forward stem", "forward f", "forward sum", "forward loss", "backward loss",
                  "backward sum", "backward f", "add f", "backward stem"}));
  const graph::Instruction& f = BackwardOf("f");
  const graph::Instruction& add = program.instructions[7];
  EXPECT_EQ(f.accumulate, 0u);
  EXPECT_TRUE(program.gradients[f.input_grads[0]].partial);
  EXPECT_EQ(add.source, f.input_grads[0]);
  EXPECT_EQ(add.target, BackwardOf("stem").output_grads[0]);
}

TEST_F(Differentiate, AValueUsedTwiceByOneOpGetsBothParts) {
  const ModelValue h = net.Apply("stem", "scale", {Net::kX});
  Finish(net.Apply("twice", "add", {h, h}));
  const graph::Instruction& twice = BackwardOf("twice");
  EXPECT_NE(twice.input_grads[0], graph::kNone);
  EXPECT_EQ(twice.input_grads[1],
            graph::kNone);  // it equals the gradient of the sum, which is added
  const graph::Instruction& add = program.instructions[5];
  ASSERT_EQ(add.kind, graph::InstructionKind::kAdd);
  EXPECT_EQ(add.source, twice.output_grads[0]);
  EXPECT_EQ(add.target, twice.input_grads[0]);
}

// Two blocks, l1.* and l2.*, of which what goes in is kept. The last op of a block is not called again,
// as its backward reads its input alone, and the first of l1, which passes the gradient on, reads
// nothing.
TEST_F(Differentiate, OfABlockWhatBackwardReadsIsComputedOnceMore) {
  ModelValue h = net.Apply("stem", "scale", {Net::kX});
  for (const char* name : {"l1.shift", "l1.a", "l1.b", "l2.a", "l2.b"}) {
    h = net.Apply(name, std::string(name) == "l1.shift" ? "shift" : "scale", {h});
  }
  net.Recompute({"l"});
  Finish(h);
  EXPECT_EQ(Words(),
            (List{"forward stem", "forward l1.shift", "forward l1.a", "forward l1.b",
                  "forward l2.a", "forward l2.b", "forward loss", "backward loss", "recompute l2.a",
                  "backward l2.b", "backward l2.a", "recompute l1.shift", "recompute l1.a",
                  "backward l1.b", "backward l1.a", "backward l1.shift", "backward stem"}));
  const std::vector<int32_t> users = {2, 12, 14};  // of l1.a.weight, the gradient with the last
  EXPECT_EQ(program.users_of_parameter[2], users);
  EXPECT_EQ(program.instructions[11].source, BackwardOf("l1.b").output_grads[0]);
}

TEST_F(Differentiate, AFrozenBlockIsNotComputedOnceMore) {
  ModelValue h = net.Apply("a.x", "scale", {net.Apply("a.y", "scale", {Net::kX})});
  h = net.Apply("b.y", "scale", {net.Apply("b.x", "scale", {h})});
  net.Recompute({""});
  Finish(h, {"a.", "b.x."});
  EXPECT_EQ(Words(), (List{"forward a.y", "forward a.x", "forward b.x", "forward b.y",
                           "forward loss", "backward loss", "recompute b.x", "backward b.y"}));
}

TEST_F(Differentiate, AForwardProgramHasNoGradients) {
  FinishForInference(Chain(net, "scale", 2));
  EXPECT_EQ(Words(), (List{"forward l0", "forward l1"}));
  EXPECT_TRUE(program.gradients.empty());
  EXPECT_EQ(program.of_parameter, (std::vector<graph::GradientId>{graph::kNone, graph::kNone}));
}

TEST(BufferGraph, ABufferIsNotTrainedWhateverItsLayerIs) {
  Net net(ReplicaOps(), kSamples, {kWidth});
  ModelValue h = net.Apply("a", "center", {net.Apply("w", "scale", {Net::kX})});
  h = net.Apply("b", "center", {h}, {}, {.trainable = 0});
  const graph::Graph graph = net.Finish(net.Apply("c", "center", {h}), {"c."});
  const graph::Program program = graph::Differentiate(graph);
  ASSERT_EQ(graph.parameters.size(), 4u);
  for (size_t p = 1; p < 4; ++p) {
    EXPECT_TRUE(graph.parameters[p].buffer) << graph.parameters[p].name;
    EXPECT_FALSE(graph.parameters[p].trainable);
    EXPECT_EQ(program.of_parameter[p], graph::kNone);
    EXPECT_TRUE(program.users_of_parameter[p].empty());
  }
  EXPECT_FALSE(graph.parameters[0].buffer);
  EXPECT_NE(program.of_parameter[0], graph::kNone) << "gradients pass through an op with a buffer";
}

}  // namespace
}  // namespace engine::test
