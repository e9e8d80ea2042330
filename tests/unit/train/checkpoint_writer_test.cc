// A model whose file is so large that its thread tells of progress, where the test holds it.
#include "app/run/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/launch/member.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/single_rank.h"

namespace engine::test {
namespace {

using ::testing::Pair;
using train::CheckpointKind;

constexpr char kWriterConfig[] =
    "model { mlp { hidden: [1000, 3000] } } data { synthetic {} }\n"
    "train { steps: 1 global_batch: 2 }\n"
    "plugins: [\"null\", \"fifo_sched\", \"adamw\", \"cpu_ops\"]\n";
constexpr ModelInputs kWriterInputs{.input_shape = {3}, .target_shape = {}, .classes = 2};

// Holds whoever tells that more is on the disk.
class HoldingStore final : public MemoryStore {
 public:
  using MemoryStore::MemoryStore;
  Status Set(std::string_view key, std::string_view value) override {
    if (key == launch::kProgressKey && holds_.exchange(false)) {
      held_.set_value();
      go_.get_future().wait();
    }
    return MemoryStore::Set(key, value);
  }
  void HoldNext() { holds_ = true; }
  void AwaitHeld() { held_.get_future().wait(); }
  void Release() { go_.set_value(); }

 private:
  std::atomic<bool> holds_ = false;
  std::promise<void> held_, go_;
};

class Announced final : public run::RunObserver {
 public:
  Status OnCheckpoint(int64_t step, const std::string& path) override {
    files.emplace_back(step, path);
    return {};
  }
  std::vector<std::pair<int64_t, std::string>> files;
};

class CheckpointWriterTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(executor_); }
  Status Save(const std::string& path, int64_t step, CheckpointKind kind) {
    return writer_.Save(path, /*keep=*/1, *executor_, {.step = step, .config = kWriterConfig}, kind,
                        /*together=*/false);
  }
  void FillParameters(float value) {
    const int64_t count = executor_->memory().layout().total_count;
    std::fill_n(executor_->memory().parameters(), count, value);
  }

  const test::TempFolder folder_;
  const std::string path_ = folder_ / "model", whole_ = folder_ / "whole";
  const RankWithExecutor made_ = MakeRankWithExecutor(kWriterConfig, kWriterInputs);
  exec::Executor* const executor_ = made_.executor.get();
  base::AbortSignal abort_;
  HoldingStore store_{std::make_shared<MemoryTable>(), abort_};
  std::atomic<int> stop_{0};
  std::vector<std::string> log_;
  base::RankContext rank_{.info = {},
                          .store = store_,
                          .abort = abort_,
                          .stop_requested = stop_,
                          .log = [this](LogLevel, std::string_view line) {
                            log_.emplace_back(line);
                            if (line.find("still being written") != line.npos) store_.Release();
                          }};
  Announced announced_;
  run::CheckpointWriter writer_{rank_, announced_};
};

// At the moment at which it is held a kill would leave what is there then.
TEST_F(CheckpointWriterTest, WhatIsWrittenIsTheCopyAndComesWholeAndIsAnnouncedThen) {
  ASSERT_THAT(Save(path_, 1, CheckpointKind::kLast), IsOk());
  const std::string before = ReadWhole(path_);
  FillParameters(2);
  ASSERT_THAT(Save(whole_, 2, CheckpointKind::kLast), IsOk());
  announced_.files.clear();

  store_.HoldNext();
  ASSERT_THAT(Save(path_, 2, CheckpointKind::kPeriodic), IsOk());
  FillParameters(3);
  store_.AwaitHeld();
  EXPECT_THAT(writer_.OnStep({}), IsOk());
  EXPECT_THAT(announced_.files, IsEmpty());
  EXPECT_TRUE(ReadWhole(path_) == before);

  store_.Release();
  EXPECT_THAT(Save("", 3, CheckpointKind::kLast), IsOk());
  EXPECT_THAT(announced_.files, ElementsAre(Pair(2, path_)));
  EXPECT_TRUE(ReadWhole(path_) == ReadWhole(whole_));
  EXPECT_THAT(log_, IsEmpty());
}

TEST_F(CheckpointWriterTest, TheNextOneWaitsAndSaysSo) {
  store_.HoldNext();
  ASSERT_THAT(Save(path_, 1, CheckpointKind::kPeriodic), IsOk());
  store_.AwaitHeld();
  EXPECT_THAT(Save(whole_, 2, CheckpointKind::kPeriodic), IsOk());
  EXPECT_THAT(log_, ElementsAre(HasSubstr("the checkpoint of step 1 is still being written")));
  EXPECT_THAT(announced_.files, ElementsAre(Pair(1, path_)));
  while (announced_.files.size() < 2) ASSERT_THAT(writer_.OnStep({}), IsOk());
  EXPECT_THAT(announced_.files.back(), Pair(2, whole_));
}

TEST_F(CheckpointWriterTest, WhatFailsIsToldAtTheNextStepOrCheckpoint) {
  const std::string nowhere = folder_ / "none/model";
  ASSERT_THAT(Save(nowhere, 1, CheckpointKind::kPeriodic), IsOk());
  Status status;
  while (status.ok()) status = writer_.OnStep({});
  EXPECT_THAT(status, FailsWith(StatusCode::kStorage, HasSubstr(nowhere)));
  ASSERT_THAT(Save(nowhere, 2, CheckpointKind::kBest), IsOk());
  EXPECT_THAT(Save(path_, 3, CheckpointKind::kPeriodic), FailsWith(StatusCode::kStorage));
  EXPECT_THAT(announced_.files, IsEmpty());
}

TEST_F(CheckpointWriterTest, ARunThatEndsHasWhatWasBeingWritten) {
  {
    run::CheckpointWriter writer(rank_, announced_);
    ASSERT_THAT(writer.Save(path_, 1, *executor_, {.step = 7, .config = kWriterConfig},
                            CheckpointKind::kPeriodic, /*together=*/false),
                IsOk());
    abort_.Raise(Status::Error(StatusCode::kPeerLost, "rank 1 is lost"));
  }
  EXPECT_EQ(ValueOf(checkpoint::OpenCheckpoint(path_)).info.step, 7);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(CheckpointWriterTest, WithoutMemoryForACopyItIsWrittenAtOnce) {
  ASSERT_THAT(Save(path_, 1, CheckpointKind::kLast), IsOk());
  rlimit saved{};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &saved), 0);
  for (int64_t step = 2; step <= 3; ++step) {
    const rlimit nothing_more{.rlim_cur = 1, .rlim_max = saved.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_DATA, &nothing_more), 0);
    const Status status = Save(path_, step, CheckpointKind::kPeriodic);
    setrlimit(RLIMIT_DATA, &saved);
    ASSERT_THAT(status, IsOk());
    EXPECT_THAT(announced_.files.back(), Pair(step, path_));
  }
  EXPECT_THAT(log_, ElementsAre(HasSubstr("no memory for a copy")));
}
#endif

}  // namespace
}  // namespace engine::test
