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
  Net net(ReplicaOps(), max_samples, {kWidth});
  ModelValue h = net.Apply("first", center, {net.Apply("stem", "scale", {Net::kX})});
  for (const std::string block : {"a", "b"}) {
    const ModelValue f =
        net.Apply(block + ".center", center, {net.Apply(block + ".scale", "scale", {h})});
    const ModelValue g =
        net.Apply(block + ".other", center, {net.Apply(block + ".shift", "shift", {h})});
    h = net.Apply(block + ".scale2", "scale", {net.Apply(block + ".add", "add", {f, g})});
  }
  net.Apply("dead", center, {net.Apply("dead.scale", "scale", {h})});
  return net.Finish(net.Apply("last", "shift", {h}), frozen);
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
