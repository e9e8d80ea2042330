// Parameters that their ops change themselves.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/graph/memory_plan.h"
#include "tests/unit/exec/fake_replica_ops.h"
#include "tests/unit/graph/graphs.h"

namespace engine::test {
namespace {

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

// Whoever reads a buffer keeps its place before or after the op that changes it.
TEST(BufferGraph, ReadersOfABufferAreOrderedAroundItsOp) {
  Net net(ReplicaOps(), kSamples, {kWidth});
  const ModelValue w = net.Apply("w", "scale", {Net::kX});
  const ModelValue a = net.Apply("a", "center", {w});
  const ModelValue reads = net.Apply("reads", "add", {w, net.Parameter("a.mean")});
  const graph::Graph graph = net.Finish(net.Apply("sum", "add", {reads, a}));
  const graph::MemoryPlan plan = graph::PlanMemory(graph, graph::ForwardProgram(graph));
  const auto& waits = plan.depends_on[static_cast<size_t>(NodeNamed(graph, "reads"))];
  EXPECT_EQ(std::count(waits.begin(), waits.end(), NodeNamed(graph, "a")), 1);
}

}  // namespace
}  // namespace engine::test
