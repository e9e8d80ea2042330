// A model in which everything that makes gradients share memory occurs, and batches for it.
#pragma once

#include <gtest/gtest.h>

#include "tests/unit/exec/rig.h"

namespace engine::test {

constexpr int64_t kWidth = 3;
constexpr int64_t kSamples = 4;

// Residual blocks, a value used three times, a value used twice by one op, and ops that can and
// cannot add to a gradient: everything that makes gradients share memory.
inline graph::Graph TangledGraph(const std::vector<std::string>& frozen = {}) {
  Net net(FakeOps(), kSamples, {kWidth});
  ModelValue h = net.Apply("stem", "scale", {Net::kX});
  for (const char* name : {"a", "b", "c"}) {
    const std::string block = name;
    ModelValue f = net.Apply(block + ".scale", block == "b" ? "scale_slow" : "scale", {h});
    f = net.Apply(block + ".shift", "shift", {f});
    const ModelValue g = net.Apply(block + ".side", "scale_slow", {h});
    h = net.Apply(block + ".add", "add", {h, f});
    h = net.Apply(block + ".add_side", "add", {g, h});
  }
  h = net.Apply("twice", "add", {h, h});
  return net.Finish(net.Apply("last", "shift", {h}), frozen);
}

// With a rate that keeps every value a small integer, exact in float32.
struct BatchData : StepBatch {
  explicit BatchData(int64_t width = kWidth) {
    for (int i = 0; i < kSamples * width; ++i) {
      input.push_back(static_cast<float>(i % 5 - 2));
      target.push_back(i % 3);
    }
    samples = kSamples;
    rate = static_cast<float>(kSamples * width);
  }
};

// The parameters after `steps` steps with a rate that keeps numbers small; with a flush after each
// step, or at the end.
inline std::vector<float> Trained(Rig* rig, uint64_t steps, bool flushes = true) {
  const BatchData batch;
  for (uint64_t step = 1; step <= steps; ++step) {
    exec::StepInput input = batch.Step(step);
    input.learning_rate = 0.01f;
    const auto made = flushes ? rig->Step(input) : rig->executor->Step(input);
    EXPECT_TRUE(made.ok()) << made.status().message();
  }
  EXPECT_TRUE(rig->executor->Flush().ok());
  return rig->Parameters();
}

}  // namespace engine::test
