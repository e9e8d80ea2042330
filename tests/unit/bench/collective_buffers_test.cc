#include "bench/collectives/collective_buffers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace engine::bench {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;

struct World {
  explicit World(const CollectiveCase& c) : kind(c.kind), count(c.count) {
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.push_back(std::make_unique<CollectiveBuffers>(
          c,
          RankInfo{
              .rank = rank, .world_size = kRanks, .local_rank = rank, .local_world_size = kRanks}));
      ranks.back()->Fill();
      transfers.push_back(ranks.back()->MakeTransfer(1, 0, 1000));
    }
  }

  const float* Send(int rank) const {
    return static_cast<const float*>(transfers[static_cast<size_t>(rank)].send);
  }
  float* Recv(int rank) const {
    return static_cast<float*>(transfers[static_cast<size_t>(rank)].recv);
  }
  float Sum(int64_t index) const {
    float sum = 0;
    for (int rank = 0; rank < kRanks; ++rank) sum += Send(rank)[index];
    return sum;
  }

  // The collective by its definition, from copies, because buffers may overlap.
  void Run() {
    std::vector<std::vector<float>> results(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      auto& result = results[static_cast<size_t>(rank)];
      for (int64_t i = 0; i < count; ++i) {
        if (kind == TransferKind::kAllReduce) result.push_back(Sum(i));
        if (kind == TransferKind::kReduceScatter) result.push_back(Sum(rank * count + i));
        if (kind == TransferKind::kBroadcast) result.push_back(Send(0)[i]);
      }
      if (kind != TransferKind::kAllGather) continue;
      for (int from = 0; from < kRanks; ++from) {
        result.insert(result.end(), Send(from), Send(from) + count);
      }
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto& result = results[static_cast<size_t>(rank)];
      std::memcpy(Recv(rank), result.data(), result.size() * sizeof(float));
    }
  }

  int64_t Wrong(std::string* first = nullptr) const {
    int64_t wrong = 0;
    std::string words;
    for (const auto& rank : ranks) wrong += rank->CountWrong(first != nullptr ? first : &words);
    return wrong;
  }

  const TransferKind kind;
  const int64_t count;
  std::vector<std::unique_ptr<CollectiveBuffers>> ranks;
  std::vector<Transfer> transfers;
};

class Buffers : public ::testing::TestWithParam<std::tuple<TransferKind, bool>> {
 protected:
  CollectiveCase Case() const { return {std::get<0>(GetParam()), 700, std::get<1>(GetParam())}; }
};

TEST_P(Buffers, AcceptTheRightResultAndNoOther) {
  World world(Case());
  EXPECT_GT(world.Wrong(), 0);
  world.Run();
  std::string first;
  EXPECT_EQ(world.Wrong(&first), 0) << first;
  world.Recv(1)[5] += 1;
  EXPECT_EQ(world.Wrong(&first), 1);
  EXPECT_THAT(first, HasSubstr("element 5 of rank 1 is"));
}

TEST_P(Buffers, NoticeSwappedChunks) {
  World world(Case());
  world.Run();
  std::swap_ranges(world.Recv(0), world.Recv(0) + 350, world.Recv(0) + 350);
  EXPECT_GT(world.Wrong(), 600);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Buffers,
    ::testing::Combine(::testing::Values(TransferKind::kAllReduce, TransferKind::kReduceScatter,
                                         TransferKind::kAllGather, TransferKind::kBroadcast),
                       ::testing::Bool()));

TEST(CaseOfSize, CountsAsNcclTestsDo) {
  EXPECT_EQ(CaseOfSize(TransferKind::kAllReduce, 1024, 4, true).count, 256);
  EXPECT_EQ(CaseOfSize(TransferKind::kAllGather, 1024, 4, true).count, 64);
  EXPECT_EQ(CaseOfSize(TransferKind::kReduceScatter, 4, 4, true).count, 1);
  EXPECT_EQ(SizeBytes({TransferKind::kReduceScatter, 64, true}, 4), 1024);
  EXPECT_EQ(SizeBytes({TransferKind::kBroadcast, 64, true}, 4), 256);
}

}  // namespace
}  // namespace engine::bench
