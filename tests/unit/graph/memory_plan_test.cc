#include "core/graph/memory_plan.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/graph/graphs.h"

namespace engine::test {
namespace {

constexpr size_t kSlot = 64;  // one tensor of graphs.h, aligned
static_assert(kTensorBytes <= kSlot);

class MemoryPlanTest : public ProgramTest {
 protected:
  void Plan(ModelValue logits) {
    Finish(logits);
    PlanProgram();
  }
  void PlanForInference(ModelValue logits) {
    FinishForInference(logits);
    PlanProgram();
  }
  ModelValue Leaf(const std::string& name) { return net.Apply(name, "scale", {Net::kX}); }

  // Where the gradients of `value` lie: one, or the parts that are added up.
  std::vector<graph::StorageId> StoragesOf(ModelValue value) const {
    std::vector<graph::StorageId> storages;
    for (size_t i = 0; i < program.gradients.size(); ++i) {
      if (program.gradients[i].of == value) storages.push_back(plan.of_gradient[i]);
    }
    return storages;
  }
  graph::StorageId StorageOf(ModelValue value) const {
    const std::vector<graph::StorageId> all = StoragesOf(value);
    EXPECT_FALSE(all.empty());
    return all.empty() ? graph::kNone : all[0];
  }

  graph::MemoryPlan plan;

 private:
  // The lifetimes of two storages that share bytes do not meet.
  void PlanProgram() {
    plan = graph::PlanMemory(graph, program);
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
};

TEST_F(MemoryPlanTest, InferenceOverAChainAlternatesBetweenTwoBuffers) {
  PlanForInference(Chain(net, "scale", 9));
  EXPECT_EQ(plan.arena_bytes, 2 * kSlot);
  // The reader of the memory that l2 writes anew is l1, on which it depends anyway.
  for (int32_t k = 1; k < 9; ++k) {
    EXPECT_EQ(plan.depends_on[static_cast<size_t>(k)], std::vector<int32_t>{k - 1});
  }
}

TEST_F(MemoryPlanTest, InPlaceOpsNeedOneBuffer) {
  PlanForInference(Chain(net, "shift", 9));
  EXPECT_EQ(plan.arena_bytes, kSlot);
}

TEST_F(MemoryPlanTest, AnInputThatIsReadLaterIsNotOverwritten) {
  const ModelValue h = Leaf("a");
  const ModelValue shifted = net.Apply("b", "shift", {h});  // could work in place, but h is needed
  PlanForInference(net.Apply("sum", "add", {shifted, h}));
  EXPECT_NE(plan.of_value[shifted], plan.of_value[h]);
}

TEST_F(MemoryPlanTest, ValuesThatBackwardReadsLiveUntilThen) {
  Plan(Chain(net, "scale", 5));
  for (size_t k = program.forward_count; k < program.instructions.size(); ++k) {
    for (ModelValue input : graph.nodes[program.instructions[k].node].inputs) {
      EXPECT_GE(plan.storages[plan.of_value[input]].last, static_cast<int32_t>(k));
    }
  }
  // Five activations and the gradients of five values, of which two live at a time.
  EXPECT_LE(plan.arena_bytes, 7 * kSlot);
}

TEST_F(MemoryPlanTest, PassedGradientsShareMemory) {
  const ModelValue a = Leaf("a"), b = Leaf("b");
  const ModelValue sum = net.Apply("sum", "add", {a, b});
  Plan(sum);
  EXPECT_EQ(StorageOf(a), StorageOf(sum));
  EXPECT_EQ(StorageOf(b), StorageOf(sum));
}

TEST_F(MemoryPlanTest, EqualGradientsShareMemory) {
  const ModelValue a = Leaf("a"), b = Leaf("b"), c = Leaf("c");
  const ModelValue sum = net.Apply("sum", "doubled_sum", {Net::kX, a, b, c});
  Plan(sum);
  EXPECT_EQ(StorageOf(b), StorageOf(a));
  EXPECT_EQ(StorageOf(c), StorageOf(a));
  EXPECT_NE(StorageOf(a), StorageOf(sum)) << "it is another gradient than that of the output";
}

TEST_F(MemoryPlanTest, EqualGradientsAreApartWhereOneIsReadWhileTheOtherChanges) {
  const ModelValue h = Leaf("h"), b = Leaf("b");
  const ModelValue f = net.Apply("f", "scale", {h});  // reads the gradient of f, adds to that of h
  Plan(net.Apply("sum", "doubled_sum", {h, f, b}));
  EXPECT_NE(StorageOf(f), StorageOf(h));
  EXPECT_NE(StorageOf(b), StorageOf(h)) << "b has its turn when that of h has changed";
  EXPECT_EQ(StorageOf(b), StorageOf(f));
}

TEST_F(MemoryPlanTest, EqualGradientsShareMemoryThatChangesWhenTheOthersWereRead) {
  const ModelValue h = Leaf("h");
  const ModelValue f = net.Apply("f", "scale", {h});
  const ModelValue g = net.Apply("g", "scale", {f});  // the gradient of g is read before h changes
  Plan(net.Apply("sum", "doubled_sum", {h, g}));
  EXPECT_EQ(StorageOf(g), StorageOf(h));
}

TEST_F(MemoryPlanTest, EqualGradientsAreApartWhereOneIsAddedTo) {
  const ModelValue h = Leaf("h"), b = Leaf("b"), c = Leaf("c");
  const ModelValue sum = net.Apply("sum", "doubled_sum_adds", {h, b, c});
  Plan(net.Apply("out", "add", {sum, net.Apply("later", "scale", {h})}));
  EXPECT_EQ(StoragesOf(h).size(), 1u) << "nothing is added to anything";
  EXPECT_NE(StorageOf(b), StorageOf(h));
  EXPECT_EQ(StorageOf(c), StorageOf(b));
}

TEST_F(MemoryPlanTest, EqualGradientsOfOneValueAreItsSum) {
  const ModelValue h = Leaf("h");
  Plan(net.Apply("sum", "doubled_sum", {h, h}));
  const std::vector<graph::StorageId> parts = StoragesOf(h);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_NE(parts[0], parts[1]);
}

TEST_F(MemoryPlanTest, ParameterGradientsLieWhereTheyAreSentFrom) {
  Plan(Chain(net, "scale", 2));
  for (int32_t p = 0; p < 2; ++p) {
    const graph::Storage& storage = plan.storages[plan.of_gradient[program.of_parameter[p]]];
    EXPECT_EQ(storage.kind, graph::StorageKind::kParameterGradient);
    EXPECT_EQ(storage.index, p);
  }
  EXPECT_EQ(plan.storages[plan.of_value[graph.loss]].kind, graph::StorageKind::kLoss);
  EXPECT_EQ(plan.storages[plan.of_value[graph.input]].kind, graph::StorageKind::kInput);
}

TEST_F(MemoryPlanTest, LogitsStayReadableToTheEndOfTheForwardPass) {
  const ModelValue logits = Chain(net, "scale", 2);
  net.Apply("after", "scale", {net.Apply("before", "scale", {logits})});
  PlanForInference(logits);
  EXPECT_EQ(plan.storages[plan.of_value[logits]].last, program.forward_count - 1);
}

TEST_F(MemoryPlanTest, IndependentBranchesDoNotWaitForEachOther) {
  const ModelValue a = Leaf("a"), b = Leaf("b");
  Plan(net.Apply("sum", "add", {a, b}));
  EXPECT_TRUE(plan.depends_on[0].empty());
  EXPECT_TRUE(plan.depends_on[1].empty());
  EXPECT_EQ(plan.depends_on[2], (std::vector<int32_t>{0, 1}));
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
