// A model with ops that see all ranks, and batches for it.
#pragma once

#include <gtest/gtest.h>

#include "tests/unit/exec/fake_replica_ops.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {

constexpr int64_t kWidth = 5;

// Two branches, so that schedulers can choose, and gathers whose results later ones depend on.
inline graph::Graph Branches(int64_t max_samples, const char* center = "center",
                             const std::vector<std::string>& frozen = {}) {
  graph::GraphBuilder builder(ReplicaOps(), max_samples);
  const graph::ValueId x = builder.Input("x", {kWidth}, DType::kFloat32);
  const auto apply = [&](const std::string& name, const char* op,
                         std::vector<graph::ValueId> inputs) {
    auto value = builder.Apply(name, op, inputs);
    EXPECT_TRUE(value.ok()) << value.status().message();
    return *value;
  };
  graph::ValueId h = apply("first", center, {apply("stem", "scale", {x})});
  for (const std::string block : {"a", "b"}) {
    const graph::ValueId f =
        apply(block + ".center", center, {apply(block + ".scale", "scale", {h})});
    const graph::ValueId g =
        apply(block + ".other", center, {apply(block + ".shift", "shift", {h})});
    h = apply(block + ".scale2", "scale", {apply(block + ".add", "add", {f, g})});
  }
  apply("dead", center, {apply("dead.scale", "scale", {h})});
  h = apply("last", "shift", {h});
  return FinishedModel(builder, x, h, kWidth, frozen);
}

// Of the whole step; ranks have contiguous shares, larger ones first.
struct Batch {
  std::vector<float> input;
  std::vector<int32_t> target;
  int64_t first = 0, samples = 0;

  Batch(uint64_t step, int64_t global_samples, int rank, int ranks) {
    for (int64_t i = 0; i < global_samples * kWidth; ++i) {
      input.push_back(static_cast<float>((7 * static_cast<uint64_t>(i) + 3 * step) % 11) - 5);
      target.push_back(static_cast<int32_t>((static_cast<uint64_t>(i) + step) % 3));
    }
    const int64_t share = global_samples / ranks, larger = global_samples % ranks;
    first = rank * share + std::min<int64_t>(rank, larger);
    samples = share + (rank < larger ? 1 : 0);
  }
  exec::StepInput Input(uint64_t step) const {
    return {.input = input.data() + first * kWidth,
            .target = target.data() + first * kWidth,
            .samples = samples,
            .first_sample = first,
            .step = step,
            .learning_rate = 0.05f};
  }
};

}  // namespace engine::test
