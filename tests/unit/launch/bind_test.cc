#include "app/launch/bind.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <set>
#include <string>
#include <thread>

#include "tests/support/matchers.h"

namespace engine::launch {
namespace {

using ::testing::IsSubsetOf;

std::set<int> Processors() {
  cpu_set_t mask;
  EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  std::set<int> all;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &mask)) all.insert(i);
  }
  return all;
}

struct Bound {
  Status status;
  std::set<int> processors;
};

// On a thread of its own, so that the test stays as it is.
Bound BindIn(Binding binding, int rank, int ranks, bool joined = false, int only = -1) {
  Bound bound;
  std::thread([&] {
    if (only >= 0) {
      cpu_set_t mask;
      CPU_ZERO(&mask);
      CPU_SET(only, &mask);
      EXPECT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    }
    const RankInfo info{.rank = rank, .local_rank = rank, .local_world_size = ranks};
    bound.status = BindRank(binding, info, joined).status();
    bound.processors = Processors();
  }).join();
  return bound;
}

TEST(Bind, RanksShareTheCoresAndNoProcessorIsLeft) {
  const std::set<int> all = Processors();
  for (int ranks = 1; BindIn(Binding::kCore, 0, ranks).status.ok(); ++ranks) {
    ASSERT_LE(ranks, static_cast<int>(all.size()));
    std::set<int> seen;
    for (int rank = 0; rank < ranks; ++rank) {
      const Bound bound = BindIn(Binding::kCore, rank, ranks);
      ASSERT_TRUE(bound.status.ok()) << bound.status.message();
      for (const int processor : bound.processors) EXPECT_TRUE(seen.insert(processor).second);
    }
    EXPECT_EQ(seen, all);
  }
}

TEST(Bind, MoreRanksThanCoresAreRefused) {
  const int ranks = static_cast<int>(Processors().size()) + 1;
  const Bound bound = BindIn(Binding::kCore, 0, ranks);
  EXPECT_EQ(bound.status.code(), StatusCode::kConfig);
  EXPECT_THAT(std::string(bound.status.message()), HasSubstr(std::to_string(ranks) + " ranks"));
  EXPECT_EQ(bound.processors, Processors());
}

TEST(Bind, ManyRanksShareNodes) {
  const Bound bound = BindIn(Binding::kNuma, 999, 1000);
  ASSERT_TRUE(bound.status.ok()) << bound.status.message();
  EXPECT_FALSE(bound.processors.empty());
  EXPECT_THAT(bound.processors, IsSubsetOf(Processors()));
}

TEST(Bind, TheMaskOfTheProcessIsWhatIsShared) {
  const int last = *Processors().rbegin();
  EXPECT_EQ(BindIn(Binding::kCore, 0, 1, false, last).processors, std::set<int>{last});
}

TEST(Bind, WhatAnotherLauncherHasBoundStays) {
  if (Processors().size() < 2) GTEST_SKIP() << "needs two processors";
  const Bound bound = BindIn(Binding::kCore, 0, 1, true, *Processors().begin());
  EXPECT_EQ(bound.status.code(), StatusCode::kConfig);
  EXPECT_EQ(bound.processors.size(), 1U);
}

}  // namespace
}  // namespace engine::launch
