// A model in which everything that makes gradients share memory occurs, and batches for it.
#pragma once

#include <gtest/gtest.h>

#include "tests/unit/exec/rig.h"

namespace engine::test {

constexpr int64_t kWidth = 3;
constexpr int64_t kSamples = 4;

inline graph::ValueId Must(Result<graph::ValueId> value) {
  EXPECT_TRUE(value.ok()) << value.status().message();
  return value.ok() ? *value : graph::kNone;
}

inline graph::Graph Finished(graph::GraphBuilder& builder, graph::ValueId input,
                             graph::ValueId logits, const std::vector<std::string>& frozen = {},
                             int64_t width = kWidth) {
  return FinishedModel(builder, input, logits, width, frozen);
}

// Residual blocks, a value used three times, a value used twice by one op, and ops that can and
// cannot add to a gradient: everything that makes gradients share memory.
inline graph::Graph TangledGraph(const std::vector<std::string>& frozen = {}) {
  graph::GraphBuilder builder(FakeOps(), kSamples);
  const graph::ValueId x = builder.Input("x", {kWidth}, DType::kFloat32);
  graph::ValueId h = Must(builder.Apply("stem", "scale", {x}));
  for (const char* name : {"a", "b", "c"}) {
    const std::string block = name;
    graph::ValueId f =
        Must(builder.Apply(block + ".scale", block == "b" ? "scale_slow" : "scale", {h}));
    f = Must(builder.Apply(block + ".shift", "shift", {f}));
    const graph::ValueId g = Must(builder.Apply(block + ".side", "scale_slow", {h}));
    h = Must(builder.Apply(block + ".add", "add", {h, f}));
    h = Must(builder.Apply(block + ".add_side", "add", {g, h}));
  }
  h = Must(builder.Apply("twice", "add", {h, h}));
  return Finished(builder, x, Must(builder.Apply("last", "shift", {h})), frozen);
}

struct BatchData {
  const int64_t width;
  std::vector<float> input;
  std::vector<int32_t> target;
  explicit BatchData(int64_t elements = kWidth) : width(elements) {
    for (int i = 0; i < kSamples * width; ++i) {
      input.push_back(static_cast<float>(i % 5 - 2));
      target.push_back(i % 3);
    }
  }
  exec::StepInput Step(uint64_t step, int64_t samples = kSamples) const {
    // A rate that keeps every value a small integer, exact in float32.
    return {.input = input.data(),
            .target = target.data(),
            .samples = samples,
            .step = step,
            .learning_rate = static_cast<float>(samples * width)};
  }
};

}  // namespace engine::test
