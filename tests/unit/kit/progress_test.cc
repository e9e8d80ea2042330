#include "kit/progress.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/memory_host.h"

namespace engine::kit {
namespace {

using Place = Progress::Place;

constexpr std::chrono::hours kLongSilence(1);

// Ranks that have one lane each, and what rank 0 finds when it waits for rank 1 in its transfer 5.
struct Ranks {
  explicit Ranks(int count) : hosts(test::MakeMemoryHosts(count)) {
    for (auto& host : hosts) ranks.push_back(std::make_unique<Progress>(*host, "0"));
  }
  void Tell(size_t rank, const Place& place) { ranks[rank]->Tell({&place, 1}); }
  std::string Behind(Clock::duration silence = kLongSilence) {
    const auto behind = ranks[0]->WhoIsBehind(0, {5, 1}, silence);
    return std::to_string(behind.rank) + behind.why;
  }

  std::vector<std::unique_ptr<test::MemoryHost>> hosts;
  std::vector<std::unique_ptr<Progress>> ranks;
};

TEST(Progress, WhoHasNotComeIsBehindHoweverManyWaitForIt) {
  Ranks ranks(4);
  EXPECT_EQ(ranks.Behind(), "1, which has not come to it");
  ranks.Tell(1, {5, 2});
  EXPECT_EQ(ranks.Behind(), "2, which has not come to it");
  ranks.Tell(2, {5, 3});
  ranks.Tell(3, {4, -1});
  EXPECT_EQ(ranks.Behind(), "3, which has not come to it");
}

TEST(Progress, InACircleTheConnectionToTheNextIsBlamed) {
  Ranks ranks(3);
  ranks.Tell(1, {5, 2});
  ranks.Tell(2, {5, 0});
  EXPECT_EQ(ranks.Behind(), "1");
  ranks.Tell(2, {5, 1});  // a circle that this rank is not part of
  EXPECT_EQ(ranks.Behind(), "1");
  ranks.Tell(2, {4, 0});  // in one before, which has ended here
  EXPECT_EQ(ranks.Behind(), "1");
  ranks.Tell(2, {6, -1});  // has sent its part
  EXPECT_EQ(ranks.Behind(), "2");
}

TEST(Progress, WhoTellsNothingMoreDoesNotAnswer) {
  Ranks ranks(3);
  ranks.Tell(1, {5, 2});
  ranks.Tell(2, {5, 0});
  EXPECT_EQ(ranks.Behind(), "1");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ranks.Tell(1, {5, 2});
  EXPECT_EQ(ranks.Behind(std::chrono::milliseconds(15)), "2, which does not answer");
}

// Of a rank farther down the line and in a transfer before, too; where nobody moves anything, looking is no progress.
TEST(Progress, WhatOthersMoveCounts) {
  Ranks ranks(3);
  const auto tell = [&] {
    ranks.Tell(1, {4, 2});
    ranks.Tell(2, {4, 0});
  };
  tell();
  (void)ranks.Behind();
  const uint64_t before = ranks.ranks[0]->bytes_moved();
  tell();
  (void)ranks.Behind();
  EXPECT_EQ(ranks.ranks[0]->bytes_moved(), before);
  ranks.ranks[2]->Moved(100);
  tell();
  const Clock::time_point start = CoarseNow();
  (void)ranks.Behind();
  EXPECT_GT(ranks.ranks[0]->bytes_moved(), before);
  EXPECT_GE(ranks.ranks[0]->last(), start);
}

TEST(Progress, WhatIsNoPlaceIsNone) {
  Ranks ranks(2);
  for (const char* text : {"", "x", "1 2", "1 2 5", "1 2 5 7"}) {
    ASSERT_TRUE(SetText(*ranks.hosts[1], "0/at/1", text).ok());
    EXPECT_EQ(ranks.Behind(), "1, which has not come to it") << text;
  }
}

}  // namespace
}  // namespace engine::kit
