#include "app/run/checkpoint_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "app/launch/member.h"
#include "tests/support/expect_status.h"
#include "tests/support/memory_store.h"

namespace engine::run {
namespace {

constexpr int64_t kTimeoutMs = 400;

class CheckpointWait : public ::testing::Test {
 protected:
  base::AbortSignal abort_;
  test::MemoryStore store_{std::make_shared<test::MemoryTable>(), abort_};
};

TEST_F(CheckpointWait, EndsWhenTheCheckpointIsThereHoweverLongItTakes) {
  std::thread writer([&] {
    for (int part = 0; part < 12; ++part) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kTimeoutMs / 4));
      EXPECT_THAT(store_.Set(launch::kProgressKey, std::to_string(part)), IsOk());
    }
    EXPECT_THAT(store_.Set("written", ""), IsOk());
  });
  EXPECT_THAT(AwaitCheckpoint(store_, "written", kTimeoutMs), IsOk());
  writer.join();
}

TEST_F(CheckpointWait, EndsWhenNothingIsWrittenAndBlamesRankZero) {
  const std::function<void()> tell = CheckpointProgress(store_);
  tell();
  const std::string told = ValueOf(store_.Get(launch::kProgressKey, 0));
  tell();
  EXPECT_EQ(ValueOf(store_.Get(launch::kProgressKey, 0)), told) << "too soon";
  const Status status = AwaitCheckpoint(store_, "written", kTimeoutMs).status();
  EXPECT_THAT(status, FailsWith(StatusCode::kTimeout, ::testing::HasSubstr("stands still")));
  EXPECT_EQ(status.rank(), 0);
}

}  // namespace
}  // namespace engine::run
