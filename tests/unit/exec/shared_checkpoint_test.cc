// Ranks that are threads write a checkpoint together: it is the one that rank 0 writes alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "app/launch/member.h"
#include "app/run/checkpoint_writer.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/exec/rank_world.h"

namespace engine::test {
namespace {

using train::CheckpointKind;

// Knows what was removed, and of a rank that is late with what it reads.
class LateStore final : public MemoryStore {
 public:
  LateStore(std::shared_ptr<MemoryTable> table, base::AbortSignal& abort, bool late)
      : MemoryStore(table, abort), table_(*table), delay_(late ? 20 : 0) {}
  Result<std::string> Get(std::string_view key, int64_t timeout_ms) override {
    std::this_thread::sleep_for(delay_);
    EXPECT_FALSE(!Removed().empty() && key.starts_with(Removed())) << key;
    return MemoryStore::Get(key, timeout_ms);
  }
  std::string Removed() const {
    std::string last;
    table_.values.Get(launch::kRemoveKey, 0, &last);
    return last;
  }

 private:
  const MemoryTable& table_;
  const std::chrono::milliseconds delay_;
};

class SharedCheckpointTest : public ::testing::Test {
 protected:
  // What one rank does with `writer` in the end of a run.
  using Body = std::function<Status(run::CheckpointWriter& writer, exec::Executor& executor,
                                    base::RankContext& rank)>;
  void Run(int size, bool shard, const Body& body) {
    const auto table = std::make_shared<MemoryTable>();
    RankWorld world{.size = size, .steps = 2, .shard = shard};
    world.end = [&](exec::Executor& executor, int of) -> Status {
      base::AbortSignal abort;
      LateStore store(table, abort, of == late_);
      const std::atomic<int> stop{0};
      base::RankContext rank{
          .info = executor.options().rank, .store = store, .abort = abort, .stop_requested = stop};
      rank.info.rendezvous_timeout_ms = 20000;
      run::RunObserver observer;
      run::CheckpointWriter writer(rank, observer);
      const Status status = body(writer, executor, rank);
      if (of == 0) removed_ = store.Removed();
      return status;
    };
    for (const RankResult& result : world.Run()) EXPECT_THAT(result.status, IsOk());
  }
  size_t Files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_.path()),
                                             std::filesystem::directory_iterator()));
  }

  int late_ = -1;        // a rank
  std::string removed_;  // last
  const test::TempFolder folder_;
  const std::string alone_ = folder_ / "alone", together_ = folder_ / "together";
};

TEST_F(SharedCheckpointTest, IsTheFileOfRankZeroToTheByte) {
  for (const bool shard : {false, true}) {
    for (const int size : {2, 3, 5}) {
      SCOPED_TRACE(std::to_string(size) + (shard ? " ranks, sharded" : " ranks"));
      Run(size, shard, [&](auto& writer, auto& executor, auto& rank) -> Status {
        const checkpoint::CheckpointInfo info{.step = 2, .config = "seed: 1", .world_size = size};
        ENGINE_ASSIGN_OR_RETURN(const bool shared, run::SharesFile(rank, together_));
        EXPECT_TRUE(shared);
        for (const auto kind : {CheckpointKind::kPeriodic, CheckpointKind::kLast}) {
          const std::string path = together_ + (kind == CheckpointKind::kLast ? "2" : "");
          ENGINE_RETURN_IF_ERROR(writer.Save(path, 1, executor, info, kind, /*together=*/true));
        }
        return writer.Save(alone_, 1, executor, info, CheckpointKind::kLast, /*together=*/false);
      });
      EXPECT_TRUE(ReadWhole(together_) == ReadWhole(alone_));
      EXPECT_TRUE(ReadWhole(together_ + "2") == ReadWhole(alone_));
      EXPECT_THAT(checkpoint::OpenCheckpoint(together_).status(), IsOk());
      EXPECT_EQ(Files(), 3u);
    }
  }
}

// A rank that ends before it has written its part: no file, and whoever waits for the part may end too.
TEST_F(SharedCheckpointTest, WithoutAPartThereIsNoFile) {
  Run(2, /*shard=*/true, [&](auto& writer, auto& executor, auto& rank) -> Status {
    if (rank.info.rank == 1) {
      ENGINE_RETURN_IF_ERROR(rank.store.Set("checkpoint/2" + together_ + "/copied1", ""));
      return {};
    }
    return writer.Save(together_, 1, executor, {.step = 2, .config = "seed: 1"},
                       CheckpointKind::kPeriodic, /*together=*/true);
  });
  EXPECT_EQ(Files(), 0u);
}

// Rank 0 has removed its file, as it has lost a rank: that is what the others say too.
TEST_F(SharedCheckpointTest, AFileThatIsGoneIsNoFailureOfItsOwn) {
  Run(2, /*shard=*/false, [&](auto& writer, auto& executor, auto& rank) -> Status {
    if (rank.info.rank == 0) return rank.store.Set("checkpoint/2" + together_ + "/file", "0 gone");
    std::jthread hears([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      rank.abort.Raise(Status::Error(StatusCode::kPeerLost, "rank 2 is lost"));
    });
    const Status status = writer.Save(together_, 1, executor, {.step = 2, .config = "seed: 1"},
                                      CheckpointKind::kLast, /*together=*/true);
    EXPECT_THAT(status, FailsWith(StatusCode::kPeerLost, "rank 2 is lost"));
    return {};
  });
}

// A number is summed up where a run has its steps.
TEST_F(SharedCheckpointTest, KeysOfAllButTheLastTwoAreRemoved) {
  for (const bool together : {true, false}) {
    for (late_ = 0; late_ < 3; ++late_) {
      SCOPED_TRACE(std::to_string(late_) + (together ? " is late, together" : " is late"));
      Run(3, /*shard=*/false, [&](auto& writer, auto& executor, auto& rank) -> Status {
        checkpoint::CheckpointInfo info{.config = "seed: 1", .world_size = rank.info.world_size};
        for (info.step = 1; info.step < 9; ++info.step) {
          ENGINE_RETURN_IF_ERROR(
              writer.Save(together_, 1, executor, info, CheckpointKind::kPeriodic, together));
          float number = 1;
          ENGINE_RETURN_IF_ERROR(executor.AllReduce({&number, 1}));
        }
        return writer.Save("", 1, executor, info, CheckpointKind::kLast, together);
      });
      EXPECT_EQ(removed_, "checkpoint/6" + together_ + "/");
      EXPECT_EQ(ValueOf(checkpoint::OpenCheckpoint(together_)).info.step, 8);
    }
  }
}

// Rank 1 stands on another host: what it finds at that path is not what rank 0 wrote.
TEST_F(SharedCheckpointTest, RanksThatDoNotSeeTheFileAreFound) {
  Run(3, /*shard=*/false, [&](auto& writer, auto& executor, auto& rank) -> Status {
    (void)writer, (void)executor;
    if (rank.info.rank == 1) {
      ENGINE_RETURN_IF_ERROR(
          rank.store.Get("checkpoint/shared" + together_ + "/0", 20000).status());
      return rank.store.Set("checkpoint/shared" + together_ + "/1", "");
    }
    std::string line;
    rank.log = [&](LogLevel, std::string_view text) { line = text; };
    ENGINE_ASSIGN_OR_RETURN(const bool shared, run::SharesFile(rank, together_));
    EXPECT_FALSE(shared);
    EXPECT_EQ(line.empty(), rank.info.rank != 0);
    return {};
  });
  EXPECT_EQ(Files(), 0u);
}

}  // namespace
}  // namespace engine::test
