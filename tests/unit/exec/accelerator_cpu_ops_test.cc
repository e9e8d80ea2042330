// The ops of cpu_ops on an accelerator without hardware: a perceptron with dropout.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/exec/async_world.h"

namespace engine::test {
namespace {

plugin::OwnedOption Int(const char* name, int64_t value) {
  return {.name = name, .type = OptionType::kInt, .integer = value};
}
plugin::OwnedOption Float(const char* name, double value) {
  return {.name = name, .type = OptionType::kFloat, .number = value};
}

graph::Graph Perceptron(const graph::OpFactory& ops, int64_t max_samples) {
  graph::GraphBuilder builder(ops, max_samples);
  const graph::ValueId x = builder.Input("x", {kAsyncWidth}, DType::kFloat32);
  graph::ValueId h =
      *builder.Apply("in", "linear", {x}, {Int("units", 24), Float("init_scale", 0.2)});
  h = *builder.Apply("gelu", "gelu", {h});
  h = *builder.Apply("dropout", "dropout", {h}, {Float("rate", 0.25)});
  const graph::ValueId side = *builder.Apply("side", "linear", {h}, {Int("units", 24)});
  h = *builder.Apply("add", "add", {h, side});
  h = *builder.Apply("norm", "layer_norm", {h});
  h = *builder.Apply("out", "linear", {h}, {Int("units", 3), Float("init_scale", 0.2)});
  const graph::ValueId target = builder.Input("target", {}, DType::kInt32);
  const graph::ValueId loss = *builder.Apply("loss", "softmax_cross_entropy", {h, target});
  auto graph = builder.Finish(x, target, h, loss, {});
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return std::move(*graph);
}

AsyncWorld PerceptronWorld() {
  AsyncWorld world;
  world.op_library = "cpu_ops";
  world.op_library_options = {{"threads", "1"}};
  world.model = Perceptron;
  world.least_target = 0;
  world.steps = {{}, {}, {.samples = 3}, {}, {}, {.flush = true}, {}, {}};
  return world;
}

void ExpectSame(const AsyncWorld& world) {
  const auto made = world.Run(), wanted = world.RunOnHost();
  for (size_t r = 0; r < wanted.size(); ++r) {
    ASSERT_TRUE(wanted[r].status.ok()) << wanted[r].status.message();
    ASSERT_TRUE(made[r].status.ok()) << made[r].status.message();
    EXPECT_EQ(made[r].losses, wanted[r].losses);
    EXPECT_EQ(made[r].parameters, wanted[r].parameters);
    EXPECT_NE(wanted[r].losses[0], wanted[r].losses[4]);
    EXPECT_EQ(made[r].too_early, 0);
  }
}

TEST(AcceleratorCpuOpsTest, OneRankTrainsToTheBitsOfTheHost) {
  AsyncWorld world = PerceptronWorld();
  ExpectSame(world);
  world.record = true;
  ExpectSame(world);
}

TEST(AcceleratorCpuOpsTest, RanksTrainToTheBitsOfTheHost) {
  AsyncWorld world = PerceptronWorld();
  world.size = 2;
  world.scheduler = "priority_sched";
  ExpectSame(world);
  world.shard = true;
  ExpectSame(world);
  world.micro_batches = 2;
  ExpectSame(world);
}

}  // namespace
}  // namespace engine::test
