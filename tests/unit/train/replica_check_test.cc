// The digests that ranks compare. Whole runs: tests/system/train/ranks_agree_test.cc.
#include "app/run/replica_check.h"

#include <gmock/gmock.h>

#include <array>
#include <atomic>

#include "tests/support/expect_status.h"
#include "tests/unit/exec/prompt_accelerator.h"
#include "tests/unit/train/single_rank.h"

namespace engine::test {
namespace {

using Marks = std::array<float, 8>;

class ReplicaCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    rank_ = ValueOf(SingleRank::Make(
        "model { mlp {} } data { synthetic {} } train { steps: 1 global_batch: 4 }\n"
        "plugins: [\"null\", \"fifo_sched\", \"adamw\", \"cpu_ops\"]\n"));
  }

  std::unique_ptr<exec::Executor> Initialised() {
    auto executor =
        ValueOf(rank_->MakeExecutor({.input_shape = {8}, .classes = 4, .max_samples = 4}));
    EXPECT_THAT(executor->memory().InitializeParameters(), IsOk());
    return executor;
  }

  Marks MarksOf(const exec::Executor& executor, int32_t rank, int32_t world_size) {
    base::AbortSignal abort;
    MemoryStore store(std::make_shared<MemoryTable>(), abort);
    const std::atomic<int> stop{0};
    base::RankContext context{.info = {.rank = rank, .world_size = world_size},
                              .store = store,
                              .abort = abort,
                              .stop_requested = stop};
    Marks marks;
    const auto check = run::MakeReplicaCheck(rank_->config().run(), context);
    EXPECT_THAT(check->Take(executor.memory(), executor.updates(), 1, marks), IsOk());
    return marks;
  }

  std::unique_ptr<SingleRank> rank_;
};

TEST_F(ReplicaCheckTest, SumsAreZeroWhereAllHaveTheSameForAnyNumberOfRanks) {
  const auto one = Initialised(), other = Initialised();
  other->memory().parameters()[7] += 1e-3f;
  for (const int32_t ranks : {2, 3, 1000, 65000}) {
    Marks sums{}, with_other{};
    for (int32_t rank = 0; rank < ranks; ++rank) {
      if (rank > 2 && rank + 1 < ranks) continue;  // as the ranks around it
      const float times = rank == 2 && ranks > 4 ? static_cast<float>(ranks - 3) : 1;
      const Marks marks = MarksOf(*one, rank, ranks);
      const Marks last = rank + 1 == ranks ? MarksOf(*other, rank, ranks) : marks;
      for (size_t k = 0; k < marks.size(); ++k) {
        sums[k] += times * marks[k];
        with_other[k] += times * last[k];
      }
    }
    EXPECT_EQ(sums, Marks{}) << ranks;
    EXPECT_NE(with_other, Marks{}) << ranks;
  }
}

TEST_F(ReplicaCheckTest, MemoryOfADeviceGivesTheDigestsOfTheHost) {
  const auto host = Initialised();
  const Marks expected = MarksOf(*host, 1, 2);
  PromptAccelerator device;
  rank_->plugins().device = &device;
  const auto executor = Initialised();
  ASSERT_NE(executor->memory().accelerator(), nullptr);
  EXPECT_EQ(MarksOf(*executor, 1, 2), expected);
  executor->memory().parameters()[3] = 2;
  EXPECT_NE(MarksOf(*executor, 1, 2), expected);
}

}  // namespace
}  // namespace engine::test
