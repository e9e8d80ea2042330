// Parameters that their ops change themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/graph/memory_plan.h"
#include "tests/unit/exec/fake_replica_ops.h"
#include "tests/unit/graph/graphs.h"

namespace engine::test {
namespace {

class BufferGraph : public ::testing::Test {
 protected:
  graph::ValueId Apply(const std::string& name, const std::string& op,
                       const std::vector<graph::ValueId>& inputs,
                       const graph::LayerOptions& options = {}) {
    auto value = builder_.Apply(name, op, inputs, {}, options);
    EXPECT_TRUE(value.ok()) << value.status().message();
    return value.ok() ? *value : graph::kNone;
  }
  graph::Graph Finish(graph::ValueId logits, const std::vector<std::string>& frozen = {}) {
    const graph::ValueId target = builder_.Input("target", {kWidth}, DType::kInt32);
    auto graph =
        builder_.Finish(x_, target, logits, Apply("loss", "loss", {logits, target}), frozen);
    EXPECT_TRUE(graph.ok()) << graph.status().message();
    return std::move(*graph);
  }

  graph::GraphBuilder builder_{ReplicaOps(), kSamples};
  const graph::ValueId x_ = builder_.Input("x", {kWidth}, DType::kFloat32);
};

TEST_F(BufferGraph, ABufferIsNotTrainedWhateverItsLayerIs) {
  graph::ValueId h = Apply("a", "center", {Apply("w", "scale", {x_})});
  h = Apply("b", "center", {h}, {.trainable = false});
  const graph::Graph graph = Finish(Apply("c", "center", {h}), {"c."});
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

// Whoever reads a buffer keeps its place before or after the op that changes it.
TEST_F(BufferGraph, ReadersOfABufferAreOrderedAroundItsOp) {
  const graph::ValueId w = Apply("w", "scale", {x_});
  const graph::ValueId a = Apply("a", "center", {w});
  const auto buffer = builder_.ParameterValue("a.mean");
  ASSERT_TRUE(buffer.ok());
  const graph::ValueId reads = Apply("reads", "add", {w, *buffer});
  const graph::ValueId sum = Apply("sum", "add", {reads, a});
  const graph::Graph graph = Finish(sum);
  const graph::MemoryPlan plan = graph::PlanMemory(graph, graph::ForwardProgram(graph));
  const auto& waits = plan.depends_on[static_cast<size_t>(NodeNamed(graph, "reads"))];
  EXPECT_EQ(std::count(waits.begin(), waits.end(), NodeNamed(graph, "a")), 1);
}

}  // namespace
}  // namespace engine::test
