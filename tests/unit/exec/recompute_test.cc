// What is computed once more for the backward pass has the bits of what is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/exec/fake_replica_ops.h"
#include "tests/unit/exec/rank_world.h"

namespace engine::test {
namespace {

constexpr int64_t kWidth = 16;
constexpr int64_t kSamples = 6;

// Blocks with noise, ops that work in place, values that leave a block or are read in it later, and,
// of a whole batch, an op that cannot add to a gradient, and one that sees all ranks and changes a
// buffer.
graph::Graph Blocks(int64_t samples, const std::vector<std::string>& recompute,
                    const std::vector<std::string>& frozen) {
  const bool whole = samples == kSamples;
  Net net(ReplicaOps(), samples, {kWidth});
  ModelValue h = net.Apply("stem", "scale", {Net::kX}), skip = h;
  for (const char* name : {"a", "b", "c"}) {
    const std::string block = name;
    ModelValue f = net.Apply(block + ".noise", "noise", {h});
    f = net.Apply(block + ".first", "scale", {f});
    f = net.Apply(block + ".second", block == "b" && whole ? "scale_slow" : "scale", {f});
    f = net.Apply(block + ".shift", "shift", {f});
    if (whole) f = net.Apply(block + ".center", "center", {f});
    const ModelValue g = net.Apply(block + ".side", "scale", {f});
    h = net.Apply(block + ".add", "add", {net.Apply(block + ".sum", "add", {h, g}), skip});
    skip = f;
  }
  net.Recompute(recompute);
  return net.Finish(net.Apply("last", "scale", {h}), frozen);
}

struct Seen {
  std::vector<RankResult> ranks;
  size_t arena_bytes = 0;
};

Seen Train(RankWorld world, int64_t micro_batches, const std::vector<std::string>& recompute,
           const std::vector<std::string>& frozen = {}, uint64_t seed = 0) {
  Seen seen;
  world.steps = 6;
  world.model = [&] { return Blocks(kSamples / micro_batches, recompute, frozen); };
  world.scheduler = [&](int) { return std::make_unique<RandomScheduler>(seed); };
  world.prepare = [&](Rig& rig) {
    rig.ops = ReplicaOps();
    rig.options.micro_batches = micro_batches;
  };
  world.batch = [](int rank, uint64_t step) {
    StepBatch batch = ChainBatch(kSamples, kWidth, step, rank);
    batch.first_sample = rank * kSamples;
    batch.rate = 0.001f;
    return batch;
  };
  world.end = [&](exec::Executor& executor, int rank) -> Status {
    if (rank == 0) seen.arena_bytes = executor.memory().plan().arena_bytes;
    return {};
  };
  seen.ranks = world.Run();
  return seen;
}

TEST(RecomputeTest, AnyLegalOrderGivesTheBitsOfKeptActivations) {
  const struct {
    const char* what;
    RankWorld world;
    int64_t micro_batches = 1;
    std::vector<std::string> frozen = {};
  } cases[] = {{"one rank", {.size = 1}},
               {"two ranks", {.size = 2}},
               {"two ranks, sharded", {.size = 2, .shard = true}},
               {"three micro-batches", {.size = 1}, 3},
               {"frozen", {.size = 2}, 1, {"stem", "a.", "b.second"}}};
  for (const auto& [what, world, micro_batches, frozen] : cases) {
    SCOPED_TRACE(what);
    const Seen kept = Train(world, micro_batches, {}, frozen);
    ASSERT_THAT(kept.ranks[0].status, IsOk());
    // Ranks that take turns have one order.
    for (uint64_t seed = 0; seed < (world.size == 1 ? 20 : 1); ++seed) {
      const Seen again = Train(world, micro_batches, {""}, frozen, seed);
      ASSERT_THAT(again.ranks[0].status, IsOk());
      ASSERT_EQ(again.ranks[0].losses, kept.ranks[0].losses);
      ASSERT_EQ(again.ranks[0].parameters, kept.ranks[0].parameters) << "seed " << seed;
      EXPECT_LT(again.arena_bytes, kept.arena_bytes);
    }
  }
}

// A block begins again when the gradient of what it gives is there; what sees all ranks does not.
TEST(RecomputeTest, TasksSayWhatIsComputedAgain) {
  const Seen seen = Train({.size = 2}, 1, {"b"});
  ASSERT_THAT(seen.ranks[0].status, IsOk());
  std::vector<std::string> names;
  for (const exec::Task& task : seen.ranks[0].tasks) {
    if (task.info.kind == TaskKind::kBackward) names.push_back(task.name);
  }
  const std::vector<std::string> around(std::ranges::find(names, "recompute b.noise") - 1,
                                        std::ranges::find(names, "backward b.side"));
  EXPECT_THAT(around,
              ::testing::ElementsAre("backward c.noise", "recompute b.noise", "recompute b.first",
                                     "backward b.add", "backward b.sum"));
}

}  // namespace
}  // namespace engine::test
