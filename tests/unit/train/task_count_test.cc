// How many tasks a step of configs/gpt2_124m.pbtxt has on accelerators, where each of them is at
// least a launch.

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <map>

#include "core/exec/executor.h"
#include "tests/unit/exec/prompt_accelerator.h"
#include "tests/unit/train/single_rank.h"

namespace engine::test {
namespace {

// To plan for: its memory is addresses without anything behind them.
class HollowAccelerator final : public PromptAccelerator {
 public:
  const char* type() const noexcept override { return "hollow"; }
  Status Allocate(size_t size_bytes, void** out) noexcept override {
    *out = reinterpret_cast<void*>(next_);
    next_ += (size_bytes + 63) / 64 * 64;
    return {};
  }
  void Free(void*) noexcept override {}
  Status Copy(void*, const void*, size_t, Stream*) noexcept override { return {}; }
  Status Zero(void*, size_t, Stream*) noexcept override { return {}; }

 private:
  uintptr_t next_ = uintptr_t{1} << 62;
};

std::string ConfigWith(const std::string& scheduler) {
  std::ifstream file(ENGINE_TEST_SOURCE_DIR "/configs/gpt2_124m.pbtxt");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string chosen = "\"priority_sched\"";
  const size_t at = text.find(chosen);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, chosen.size(), "\"null\", \"" + scheduler + "\"");
}

class TaskCount : public ::testing::TestWithParam<const char*> {
 protected:
  // By kind.
  std::map<TaskKind, size_t> Tasks(int32_t world_size, bool sharded = false) {
    auto rank = SingleRank::Make(ConfigWith(GetParam()));
    EXPECT_TRUE(rank.ok()) << rank.status().message();
    std::map<std::string, int64_t> data;
    for (const plugin::OwnedOption& option : (*rank)->config().plugins().dataset.options) {
      data[option.name] = option.integer;
    }
    auto graph = (*rank)->BuildGraph({.input_shape = {data["context"]},
                                      .input_dtype = DType::kInt32,
                                      .target_shape = {data["context"]},
                                      .classes = data["vocabulary"],
                                      .max_samples = 64});
    EXPECT_TRUE(graph.ok()) << graph.status().message();
    HollowAccelerator device;
    plugin::PluginSet& plugins = (*rank)->plugins();
    plugins.device = &device;
    std::map<TaskKind, size_t> count;
    const auto executor = exec::Executor::Create(
        std::move(*graph), plugins, (*rank)->ops(), nullptr,
        {.rank = {.world_size = world_size}, .shard_optimizer = sharded, .hook_names = {"clip"}});
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    for (const exec::Task& task : (*executor)->tasks().tasks) {
      ++count[task.info.kind];
      largest_transfer_ = std::max(largest_transfer_, task.info.size_bytes);
    }
    total_ = (*executor)->tasks().tasks.size();
    RecordProperty(std::string("tasks_").append(std::to_string(world_size)),
                   static_cast<int>(total_));
    return count;
  }

  size_t total_ = 0;
  uint64_t largest_transfer_ = 0;
};

TEST_P(TaskCount, OfOneRankHasNoTransferAndOneUpdate) {
  auto count = Tasks(1);
  EXPECT_EQ(count[TaskKind::kTransfer], 0u);
  EXPECT_EQ(count[TaskKind::kUpdate], 1u);
  EXPECT_GT(count[TaskKind::kBackward], 100u);
  EXPECT_LT(total_, 700u);
}

TEST_P(TaskCount, OfEightRanksHasFewLargeTransfersAndOneUpdate) {
  for (const bool sharded : {false, true}) {
    auto count = Tasks(8, sharded);
    EXPECT_EQ(count[TaskKind::kUpdate], 1u);
    EXPECT_GT(count[TaskKind::kTransfer], 8u);
    EXPECT_LT(count[TaskKind::kTransfer], 50u);
    EXPECT_GE(largest_transfer_, 24u << 20);
    EXPECT_LT(total_, 700u);
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, TaskCount,
                         ::testing::Values("priority_sched", "fifo_sched", "dear_sched",
                                           "sequential_sched"));

}  // namespace
}  // namespace engine::test
