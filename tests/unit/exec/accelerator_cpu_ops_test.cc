// The ops of cpu_ops on an accelerator without hardware: a perceptron with dropout.
#include <gtest/gtest.h>

#include "tests/unit/exec/async_world.h"

namespace engine::test {
namespace {

graph::Graph Perceptron(const plugin::OpFactory& ops, int64_t max_samples) {
  using kit::Float, kit::Int;
  Net net(ops, max_samples, {.name = "x", .shape = {kAsyncWidth}},
          {.name = "target", .shape = {}, .dtype = DType::kInt32});
  ModelValue h = net.Apply("in", "linear", {Net::kX}, {Int("units", 24), Float("init_scale", 0.2)});
  h = net.Apply("gelu", "gelu", {h});
  h = net.Apply("dropout", "dropout", {h}, {Float("rate", 0.25)});
  const ModelValue side = net.Apply("side", "linear", {h}, {Int("units", 24)});
  h = net.Apply("add", "add", {h, side});
  h = net.Apply("norm", "layer_norm", {h});
  h = net.Apply("out", "linear", {h}, {Int("units", 3), Float("init_scale", 0.2)});
  return net.Finish(h, {}, "softmax_cross_entropy");
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
  const auto wanted = world.RunOnHost();
  ExpectSameBits(world.Run(), wanted);
  EXPECT_NE(wanted[0].losses[0], wanted[0].losses[4]);
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

// Copies of parameters are made by other means on the two.
TEST(AcceleratorCpuOpsTest, RanksTrainToTheBitsOfTheHostInBFloat16) {
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "no AVX512-BF16 on this processor";
  AsyncWorld world = PerceptronWorld();
  world.op_library_options.emplace("precision", "bf16");
  world.size = 2;
  ExpectSame(world);
  world.shard = true;
  ExpectSame(world);
}

}  // namespace
}  // namespace engine::test
