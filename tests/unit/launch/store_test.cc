// What a Store must do, over the connections of ranks.

#include "core/base/store.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/unit/launch/socket_run.h"

namespace engine::launch {
namespace {

// Two ranks and their store server.
class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    run_.Start();
    ASSERT_TRUE(ranks_[0].client.Join(base::DeadlineIn(kLongMs)).ok());
    ASSERT_TRUE(ranks_[1].client.Join(base::DeadlineIn(kLongMs)).ok());
  }
  base::Store& store(int rank) { return ranks_[rank].client; }

  SocketRun run_{2};
  SocketRank ranks_[2] = {{run_.Connect(), 0, 2}, {run_.Connect(), 1, 2}};
};

TEST_F(StoreTest, PostsArriveInOrderAlsoWhatCameBeforeTheListener) {
  base::Store &a = store(0), &b = store(1);
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

TEST_F(StoreTest, WhatIsRemovedIsThereWhenItIsSetAgain) {
  base::Store &a = store(0), &b = store(1);
  for (const char* key : {"k", "key", "key/2", "other"}) ASSERT_TRUE(a.Set(key, "1").ok());
  ASSERT_TRUE(a.Set(kRemoveKey, "key").ok());
  EXPECT_TRUE(*b.Has("k") && *b.Has("other"));
  EXPECT_FALSE(*b.Has("key") || *b.Has("key/2") || *b.Has(kRemoveKey));
  EXPECT_EQ(b.Get("key", 50).status().code(), StatusCode::kTimeout);
  ASSERT_TRUE(a.Set("key", "2").ok());
  EXPECT_EQ(*b.Get("key", kLongMs), "2");
}

TEST_F(StoreTest, OneRankReadsWhatTheOtherWrote) {
  base::Store &a = store(0), &b = store(1);
  Result<bool> before = b.Has("k");
  ASSERT_TRUE(before.ok());
  EXPECT_FALSE(*before);
  ASSERT_TRUE(a.Set("k", "one").ok());
  EXPECT_TRUE(*b.Has("k"));
  EXPECT_EQ(*b.Get("k", kLongMs), "one");
  ASSERT_TRUE(b.Set("k", "two").ok());
  EXPECT_EQ(*a.Get("k", kLongMs), "two");
}

// tests/cluster has members on other hosts.
TEST_F(StoreTest, MembersOfOneHostHaveNoAddressForOthers) {
  EXPECT_EQ(*store(1).Get(kAddressKey, kLongMs), "");
}

TEST_F(StoreTest, HoldsAnyBytes) {
  std::string value(300000, '\0');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7);
  std::string key("k\0\xff", 3);
  ASSERT_TRUE(store(0).Set(key, value).ok());
  EXPECT_EQ(*store(1).Get(key, kLongMs), value);
  ASSERT_TRUE(store(0).Set("empty", "").ok());
  EXPECT_EQ(*store(1).Get("empty", kLongMs), "");
}

TEST_F(StoreTest, ATimeoutNamesTheKeyAndLeavesTheStoreUsable) {
  Result<std::string> value = store(1).Get("never", 1);
  ASSERT_FALSE(value.ok());
  EXPECT_EQ(value.status().code(), StatusCode::kTimeout);
  EXPECT_NE(std::string(value.status().message()).find("'never'"), std::string::npos);
  ASSERT_TRUE(store(0).Set("never", "now").ok());
  EXPECT_EQ(*store(1).Get("never", kLongMs), "now");
}

TEST_F(StoreTest, AnAbortEndsWaitsAndFailsLaterCalls) {
  std::thread waiter([&] {
    Result<std::string> value = store(1).Get("never", kLongMs);
    ASSERT_FALSE(value.ok());
    EXPECT_STREQ(value.status().message(), "given up");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ranks_[1].abort.Raise(Status::Error(StatusCode::kConfig, "given up"));
  waiter.join();
  EXPECT_STREQ(store(1).Set("k", "v").message(), "given up");
  EXPECT_STREQ(store(1).Has("k").status().message(), "given up");
}

// The answer and the end of the run arrive together, so the caller wakes up after both.
TEST(StoreClientTest, WhatWasAnsweredBeforeTheRunWasGivenUpCounts) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const kit::UniqueFd server(pair[0]);
  SocketRank rank(kit::UniqueFd(pair[1]), 0, 1);
  EXPECT_EQ(ReadMessage(server).kind, MessageKind::kHello);
  std::thread caller([&] { EXPECT_TRUE(rank.client.Set("k", "v").ok()); });
  const Message set = ReadMessage(server);
  const Status over = Status::Error(StatusCode::kConfig, "given up");
  SendRaw(server, Encode({.kind = MessageKind::kReply, .id = set.id}) +
                      Encode(EncodeStatus(MessageKind::kAbort, over)));
  caller.join();
  EXPECT_FALSE(Await(rank.abort).ok());
  EXPECT_FALSE(rank.client.Set("k", "v").ok());
}

TEST_F(StoreTest, RefusesOversizedKeysAndValues) {
  std::string key(5000, 'k');
  EXPECT_EQ(store(0).Set(key, "").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store(0).Get(key, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store(0).Has(key).status().code(), StatusCode::kInvalidArgument);
  std::string value((64u << 20) + 1, 'v');
  EXPECT_EQ(store(0).Set("k", value).code(), StatusCode::kInvalidArgument);
}

TEST_F(StoreTest, ManyThreadsOfARankShareIt) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      base::Store& mine = store(t % 2);
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
