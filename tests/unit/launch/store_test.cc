// What every Store must do, on both implementations.

#include "core/base/store.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "app/launch/memory_store.h"
#include "tests/unit/launch/socket_run.h"

namespace engine::launch {
namespace {

// Two ranks that share a store.
class StorePair {
 public:
  virtual ~StorePair() = default;
  virtual base::Store& store(int rank) = 0;
  virtual base::AbortSignal& abort(int rank) = 0;
};

class MemoryPair final : public StorePair {
 public:
  base::Store& store(int rank) override { return rank == 0 ? first_ : second_; }
  base::AbortSignal& abort(int rank) override { return aborts_[rank]; }

 private:
  std::shared_ptr<MemoryTable> table_ = std::make_shared<MemoryTable>();
  base::AbortSignal aborts_[2];
  MemoryStore first_{table_, aborts_[0]};
  MemoryStore second_{table_, aborts_[1]};
};

class SocketPair final : public StorePair {
 public:
  SocketPair() : run_(2), first_(run_.Connect(), 0, 2), second_(run_.Connect(), 1, 2) {
    run_.Start();
    EXPECT_TRUE(first_.client.Join(base::DeadlineIn(kLongMs)).ok());
    EXPECT_TRUE(second_.client.Join(base::DeadlineIn(kLongMs)).ok());
  }
  base::Store& store(int rank) override { return (rank == 0 ? first_ : second_).client; }
  base::AbortSignal& abort(int rank) override { return (rank == 0 ? first_ : second_).abort; }

 private:
  SocketRun run_;
  SocketRank first_, second_;
};

using MakePair = std::unique_ptr<StorePair> (*)();

template <typename Pair>
std::unique_ptr<StorePair> Make() {
  return std::make_unique<Pair>();
}

class StoreTest : public testing::TestWithParam<MakePair> {
 protected:
  std::unique_ptr<StorePair> pair_ = GetParam()();
};

INSTANTIATE_TEST_SUITE_P(All, StoreTest, testing::Values(&Make<MemoryPair>, &Make<SocketPair>),
                         [](const auto& param) { return param.index == 0 ? "memory" : "socket"; });

TEST_P(StoreTest, PostsArriveInOrderAlsoWhatCameBeforeTheListener) {
  base::Store &a = pair_->store(0), &b = pair_->store(1);
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> heard, echo;
  const auto listen = [&](std::vector<std::string>* to) {
    return [&mutex, &changed, to](std::string_view text) {
      const std::lock_guard lock(mutex);
      to->emplace_back(text);
      changed.notify_all();
    };
  };
  a.Listen(listen(&echo));
  std::vector<std::string> expected;
  for (int i = 0; i < 100; ++i) {
    expected.push_back("ticket " + std::to_string(i));
    ASSERT_TRUE(a.Post(expected.back()).ok());
    if (i == 49) b.Listen(listen(&heard));
  }
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::milliseconds(kLongMs),
                               [&] { return heard.size() == expected.size(); }));
  EXPECT_EQ(heard, expected);
  EXPECT_TRUE(echo.empty()) << "a rank hears its own posts";
  lock.unlock();
  a.Listen(nullptr);
  b.Listen(nullptr);
  EXPECT_FALSE(a.Post(std::string((64u << 20) + 1, 'x')).ok());
}

TEST_P(StoreTest, OneRankReadsWhatTheOtherWrote) {
  base::Store &a = pair_->store(0), &b = pair_->store(1);
  Result<bool> before = b.Has("k");
  ASSERT_TRUE(before.ok());
  EXPECT_FALSE(*before);
  ASSERT_TRUE(a.Set("k", "one").ok());
  EXPECT_TRUE(*b.Has("k"));
  EXPECT_EQ(*b.Get("k", kLongMs), "one");
  ASSERT_TRUE(b.Set("k", "two").ok());
  EXPECT_EQ(*a.Get("k", kLongMs), "two");
}

TEST_P(StoreTest, HoldsAnyBytes) {
  std::string value(300000, '\0');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7);
  std::string key("k\0\xff", 3);
  ASSERT_TRUE(pair_->store(0).Set(key, value).ok());
  EXPECT_EQ(*pair_->store(1).Get(key, kLongMs), value);
  ASSERT_TRUE(pair_->store(0).Set("empty", "").ok());
  EXPECT_EQ(*pair_->store(1).Get("empty", kLongMs), "");
}

TEST_P(StoreTest, GetWaitsForTheKey) {
  std::thread waiter([&] { EXPECT_EQ(*pair_->store(1).Get("late", kLongMs), "x"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(pair_->store(0).Set("late", "x").ok());
  waiter.join();
}

TEST_P(StoreTest, ATimeoutNamesTheKeyAndLeavesTheStoreUsable) {
  Result<std::string> value = pair_->store(1).Get("never", 1);
  ASSERT_FALSE(value.ok());
  EXPECT_EQ(value.status().code(), StatusCode::kTimeout);
  EXPECT_NE(std::string(value.status().message()).find("'never'"), std::string::npos);
  ASSERT_TRUE(pair_->store(0).Set("never", "now").ok());
  EXPECT_EQ(*pair_->store(1).Get("never", kLongMs), "now");
}

TEST_P(StoreTest, AnAbortEndsWaitsAndFailsLaterCalls) {
  std::thread waiter([&] {
    Result<std::string> value = pair_->store(1).Get("never", kLongMs);
    ASSERT_FALSE(value.ok());
    EXPECT_STREQ(value.status().message(), "given up");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  pair_->abort(1).Raise(Status::Error(StatusCode::kConfig, "given up"));
  waiter.join();
  EXPECT_STREQ(pair_->store(1).Set("k", "v").message(), "given up");
  EXPECT_STREQ(pair_->store(1).Has("k").status().message(), "given up");
}

TEST_P(StoreTest, RefusesOversizedKeysAndValues) {
  std::string key(5000, 'k');
  EXPECT_EQ(pair_->store(0).Set(key, "").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pair_->store(0).Get(key, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pair_->store(0).Has(key).status().code(), StatusCode::kInvalidArgument);
  std::string value((64u << 20) + 1, 'v');
  EXPECT_EQ(pair_->store(0).Set("k", value).code(), StatusCode::kInvalidArgument);
}

TEST_P(StoreTest, ManyThreadsOfARankShareIt) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      base::Store& mine = pair_->store(t % 2);
      for (int i = 0; i < 25; ++i) {
        std::string own = std::to_string(t) + "/" + std::to_string(i);
        std::string other = std::to_string(3 - t) + "/" + std::to_string(i);
        ASSERT_TRUE(mine.Set(own, own).ok());
        ASSERT_EQ(*mine.Get(other, kLongMs), other);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace engine::launch
