// The fake that ops which see the whole batch are judged with.
#include "tests/support/replica_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace engine::test {
namespace {

using ::testing::HasSubstr;

void OnEachRank(int32_t size, const std::function<void(int32_t)>& body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

TEST(ReplicaThreads, GatherInTheOrderOfRanks) {
  constexpr int32_t kSize = 3, kRounds = 200;
  ReplicaThreads replicas(kSize);
  OnEachRank(kSize, [&](int32_t rank) {
    Replicas* own = replicas.rank(rank);
    EXPECT_EQ(own->size(), kSize);
    EXPECT_EQ(own->rank(), rank);
    for (int32_t round = 0; round < kRounds; ++round) {
      const int32_t count = round % 4;  // none is a gather too
      std::vector<float> all(static_cast<size_t>(kSize * count), -1.0f);
      for (int32_t i = 0; i < count; ++i) {
        all[static_cast<size_t>(rank * count + i)] =
            static_cast<float>(1000 * rank + 10 * round + i);
      }
      ASSERT_TRUE(own->Gather(all.data() + rank * count, count, all.data(), nullptr).ok());
      for (int32_t i = 0; i < kSize * count; ++i) {
        ASSERT_EQ(all[static_cast<size_t>(i)],
                  static_cast<float>(1000 * (i / count) + 10 * round + i % count));
      }
    }
  });
  EXPECT_EQ(replicas.gathers(), kRounds);
}

TEST(ReplicaThreads, ARankThatDoesNotComeIsNamed) {
  ReplicaThreads replicas(3, ReplicaThreads::Milliseconds(20));
  OnEachRank(3, [&](int32_t rank) {
    if (rank == 1) return;
    float values[3] = {};
    const Status status = replicas.rank(rank)->Gather(values, 1, values, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_THAT(status.message(), HasSubstr("rank 1 has not come"));
  });
  float values[3] = {};
  EXPECT_EQ(replicas.rank(1)->Gather(values, 1, values, nullptr).code(), StatusCode::kTimeout);
  EXPECT_EQ(replicas.gathers(), 0);
}

TEST(ReplicaThreads, CountsThatDifferFailOnAllRanks) {
  ReplicaThreads replicas(2);
  OnEachRank(2, [&](int32_t rank) {
    float values[4] = {};
    const Status status = replicas.rank(rank)->Gather(values, 1 + rank, values, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace engine::test
