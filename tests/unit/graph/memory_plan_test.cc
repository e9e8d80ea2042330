#include "core/graph/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/unit/graph/graphs.h"

namespace engine::test {
namespace {

constexpr size_t kSlot = 64;  // one tensor of graphs.h, aligned
static_assert(kTensorBytes <= kSlot);

// Bytes of the arena without any sharing: a slot for each tensor that has to be somewhere.
size_t WithoutSharing(const graph::Graph& graph, const graph::Program& program) {
  size_t bytes = 0;
  for (const graph::Value& value : graph.values) {
    if (value.kind == graph::ValueKind::kActivation && value.producer != graph::kNone)
      bytes += kSlot;
  }
  for (const graph::Gradient& gradient : program.gradients) {
    const bool parameter = graph.values[gradient.of].kind == graph::ValueKind::kParameter;
    if (!gradient.seed && !parameter) bytes += kSlot;
  }
  return bytes;
}

// The lifetimes of two storages that share bytes must not meet.
void ExpectNoOverlap(const graph::MemoryPlan& plan) {
  for (const graph::Storage& a : plan.storages) {
    if (a.kind != graph::StorageKind::kArena) continue;
    EXPECT_EQ(a.offset % kSlot, 0u);
    EXPECT_LE(a.offset + a.size_bytes, plan.arena_bytes);
    for (const graph::Storage& b : plan.storages) {
      if (&a == &b || b.kind != graph::StorageKind::kArena) continue;
      const bool alive_together = a.first <= b.last && b.first <= a.last;
      const bool share = a.offset < b.offset + b.size_bytes && b.offset < a.offset + a.size_bytes;
      EXPECT_FALSE(alive_together && share);
    }
  }
}

TEST(MemoryPlan, InferenceOverAChainAlternatesBetweenTwoBuffers) {
  Net net;
  const graph::Graph graph = net.FinishForInference(Chain(net, "scale", 9));
  const graph::MemoryPlan plan = graph::PlanMemory(graph, graph::ForwardProgram(graph));
  ExpectNoOverlap(plan);
  EXPECT_EQ(plan.arena_bytes, 2 * kSlot);
}

TEST(MemoryPlan, InPlaceOpsNeedOneBuffer) {
  Net net;
  const graph::Graph graph = net.FinishForInference(Chain(net, "shift", 9));
  const graph::MemoryPlan plan = graph::PlanMemory(graph, graph::ForwardProgram(graph));
  EXPECT_EQ(plan.arena_bytes, kSlot);
}

TEST(MemoryPlan, AnInputThatIsReadLaterIsNotOverwritten) {
  Net net;
  const graph::ValueId h = net.Apply("a", "scale", {net.input()});
  const graph::ValueId shifted =
      net.Apply("b", "shift", {h});  // could work in place, but h is needed
  const graph::Graph graph = net.FinishForInference(net.Apply("sum", "add", {shifted, h}));
  const graph::MemoryPlan plan = graph::PlanMemory(graph, graph::ForwardProgram(graph));
  ExpectNoOverlap(plan);
  EXPECT_NE(plan.of_value[shifted], plan.of_value[h]);
}

TEST(MemoryPlan, ValuesThatBackwardReadsLiveUntilThen) {
  Net net;
  const graph::Graph graph = net.Finish(Chain(net, "scale", 5));
  const graph::Program program = graph::Differentiate(graph);
  const graph::MemoryPlan plan = graph::PlanMemory(graph, program);
  ExpectNoOverlap(plan);
  for (size_t k = program.forward_count; k < program.instructions.size(); ++k) {
    for (graph::ValueId input : graph.nodes[program.instructions[k].node].inputs) {
      EXPECT_GE(plan.storages[plan.of_value[input]].last, static_cast<int32_t>(k));
    }
  }
  // Five activations and the gradients of five values, of which two live at a time.
  EXPECT_LT(plan.arena_bytes, WithoutSharing(graph, program));
  EXPECT_LE(plan.arena_bytes, 7 * kSlot);
}

TEST(MemoryPlan, PassedGradientsShareMemory) {
  Net net;
  const graph::ValueId a = net.Apply("a", "scale", {net.input()});
  const graph::ValueId b = net.Apply("b", "scale", {net.input()});
  const graph::ValueId sum = net.Apply("sum", "add", {a, b});
  const graph::Graph graph = net.Finish(sum);
  const graph::Program program = graph::Differentiate(graph);
  const graph::MemoryPlan plan = graph::PlanMemory(graph, program);
  ExpectNoOverlap(plan);
  const auto storage = [&](graph::ValueId value) {
    for (size_t i = 0; i < program.gradients.size(); ++i) {
      if (program.gradients[i].of == value) return plan.of_gradient[i];
    }
    return graph::kNone;
  };
  ASSERT_NE(storage(sum), graph::kNone);
  EXPECT_EQ(storage(a), storage(sum));
  EXPECT_EQ(storage(b), storage(sum));
}

// Where the gradients of values lie that an op with equal gradients has as inputs.
class EqualGradients : public testing::Test {
 protected:
  // Ends the net and plans it.
  void Plan(graph::ValueId logits) {
    graph_ = net.Finish(logits);
    program_ = graph::Differentiate(graph_);
    plan_ = graph::PlanMemory(graph_, program_);
    ExpectNoOverlap(plan_);
  }
  graph::ValueId Leaf(const std::string& name) { return net.Apply(name, "scale", {net.input()}); }

  // Those of `value`: one, or the parts that are added up.
  std::vector<graph::StorageId> StoragesOf(graph::ValueId value) const {
    std::vector<graph::StorageId> storages;
    for (size_t i = 0; i < program_.gradients.size(); ++i) {
      if (program_.gradients[i].of == value) storages.push_back(plan_.of_gradient[i]);
    }
    return storages;
  }
  graph::StorageId StorageOf(graph::ValueId value) const {
    const std::vector<graph::StorageId> all = StoragesOf(value);
    EXPECT_FALSE(all.empty());
    return all.empty() ? graph::kNone : all[0];
  }

  Net net;

 private:
  graph::Graph graph_;
  graph::Program program_;
  graph::MemoryPlan plan_;
};

TEST_F(EqualGradients, ShareMemory) {
  const graph::ValueId a = Leaf("a"), b = Leaf("b"), c = Leaf("c");
  const graph::ValueId sum = net.Apply("sum", "doubled_sum", {net.input(), a, b, c});
  Plan(sum);
  EXPECT_EQ(StorageOf(b), StorageOf(a));
  EXPECT_EQ(StorageOf(c), StorageOf(a));
  EXPECT_NE(StorageOf(a), StorageOf(sum)) << "it is another gradient than that of the output";
}

TEST_F(EqualGradients, AreApartWhereOneIsReadWhileTheOtherChanges) {
  const graph::ValueId h = Leaf("h"), b = Leaf("b");
  const graph::ValueId f =
      net.Apply("f", "scale", {h});  // reads the gradient of f, adds to that of h
  Plan(net.Apply("sum", "doubled_sum", {h, f, b}));
  EXPECT_NE(StorageOf(f), StorageOf(h));
  EXPECT_NE(StorageOf(b), StorageOf(h)) << "b has its turn when that of h has changed";
  EXPECT_EQ(StorageOf(b), StorageOf(f));
}

TEST_F(EqualGradients, ShareMemoryThatChangesWhenTheOthersWereRead) {
  const graph::ValueId h = Leaf("h");
  const graph::ValueId f = net.Apply("f", "scale", {h});
  const graph::ValueId g =
      net.Apply("g", "scale", {f});  // the gradient of g is read before h changes
  Plan(net.Apply("sum", "doubled_sum", {h, g}));
  EXPECT_EQ(StorageOf(g), StorageOf(h));
}

TEST_F(EqualGradients, AreApartWhereOneIsAddedTo) {
  const graph::ValueId h = Leaf("h"), b = Leaf("b"), c = Leaf("c");
  const graph::ValueId sum = net.Apply("sum", "doubled_sum_adds", {h, b, c});
  Plan(net.Apply("out", "add", {sum, net.Apply("later", "scale", {h})}));
  EXPECT_EQ(StoragesOf(h).size(), 1u) << "nothing is added to anything";
  EXPECT_NE(StorageOf(b), StorageOf(h));
  EXPECT_EQ(StorageOf(c), StorageOf(b));
}

TEST_F(EqualGradients, OfOneValueAreItsSum) {
  const graph::ValueId h = Leaf("h");
  Plan(net.Apply("sum", "doubled_sum", {h, h}));
  const std::vector<graph::StorageId> parts = StoragesOf(h);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_NE(parts[0], parts[1]);
}

TEST(MemoryPlan, ParameterGradientsLieWhereTheyAreSentFrom) {
  Net net;
  const graph::Graph graph = net.Finish(Chain(net, "scale", 2));
  const graph::Program program = graph::Differentiate(graph);
  const graph::MemoryPlan plan = graph::PlanMemory(graph, program);
  for (int32_t p = 0; p < 2; ++p) {
    const graph::Storage& storage = plan.storages[plan.of_gradient[program.of_parameter[p]]];
    EXPECT_EQ(storage.kind, graph::StorageKind::kParameterGradient);
    EXPECT_EQ(storage.index, p);
  }
  EXPECT_EQ(plan.storages[plan.of_value[graph.loss]].kind, graph::StorageKind::kLoss);
  EXPECT_EQ(plan.storages[plan.of_value[graph.input]].kind, graph::StorageKind::kInput);
}

TEST(MemoryPlan, LogitsStayReadableToTheEndOfTheForwardPass) {
  Net net;
  const graph::ValueId logits = Chain(net, "scale", 2);
  net.Apply("after", "scale", {net.Apply("before", "scale", {logits})});
  const graph::Graph graph = net.FinishForInference(logits);
  const graph::Program program = graph::ForwardProgram(graph);
  const graph::MemoryPlan plan = graph::PlanMemory(graph, program);
  ExpectNoOverlap(plan);
  EXPECT_EQ(plan.storages[plan.of_value[logits]].last, program.forward_count - 1);
}

TEST(MemoryPlan, ReusedMemoryForcesAnOrder) {
  Net net;
  const graph::Graph graph = net.FinishForInference(Chain(net, "scale", 4));
  const graph::MemoryPlan plan = graph::PlanMemory(graph, graph::ForwardProgram(graph));
  ASSERT_EQ(plan.depends_on.size(), 4u);
  EXPECT_TRUE(plan.depends_on[0].empty());
  for (int32_t k = 1; k < 4; ++k) {
    // The reader of the memory that l2 writes anew is l1, on which it depends anyway.
    EXPECT_EQ(plan.depends_on[k], std::vector<int32_t>{k - 1});
  }
}

TEST(MemoryPlan, IndependentBranchesDoNotWaitForEachOther) {
  Net net;
  const graph::ValueId a = net.Apply("a", "scale", {net.input()});
  const graph::ValueId b = net.Apply("b", "scale", {net.input()});
  const graph::Graph graph = net.Finish(net.Apply("sum", "add", {a, b}));
  const graph::MemoryPlan plan = graph::PlanMemory(graph, graph::Differentiate(graph));
  EXPECT_TRUE(plan.depends_on[0].empty());
  EXPECT_TRUE(plan.depends_on[1].empty());
  EXPECT_EQ(plan.depends_on[2], (std::vector<int32_t>{0, 1}));
}

}  // namespace
}  // namespace engine::test
