#include "bench/collectives/collective_buffers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kit/float16.h"
#include "tests/support/matchers.h"

namespace engine::bench {
namespace {

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

double Element(DType dtype, const void* data, int i) {
  if (dtype == DType::kInt32) return static_cast<const int32_t*>(data)[i];
  if (dtype == DType::kUint8) return static_cast<const uint8_t*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return dtype == DType::kBFloat16 ? kit::FromBFloat16(bits) : kit::FromFloat16(bits);
}

void SetElement(DType dtype, double value, void* data, int i) {
  const auto number = static_cast<float>(value);
  if (dtype == DType::kInt32) {
    static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
  } else if (dtype == DType::kUint8) {
    static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(value);
  } else {
    static_cast<uint16_t*>(data)[i] =
        dtype == DType::kBFloat16 ? kit::ToBFloat16(number) : kit::ToFloat16(number);
  }
}

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

// Sums of small formats are exact too, for as many ranks as there may be.
TEST(SmallFormats, SumExactly) {
  for (const DType dtype : {DType::kInt32, DType::kUint8, DType::kBFloat16, DType::kFloat16}) {
    const CollectiveCase c{TransferKind::kAllReduce, 600, true, dtype};
    double sums[600] = {};
    for (int rank = 0; rank < kMaxCheckedRanks; ++rank) {
      CollectiveBuffers buffers(c, {.rank = rank, .world_size = kMaxCheckedRanks});
      buffers.Fill();
      for (int i = 0; i < 600; ++i)
        sums[i] += Element(dtype, buffers.MakeTransfer(1, 0, 1).send, i);
    }
    CollectiveBuffers last(c, {.rank = 1, .world_size = kMaxCheckedRanks});
    void* const recv = last.MakeTransfer(1, 0, 1).recv;
    for (int i = 0; i < 600; ++i) SetElement(dtype, sums[i], recv, i);
    std::string first;
    EXPECT_EQ(last.CountWrong(&first), 0) << Name(dtype) << ": " << first;
    SetElement(dtype, sums[7] + 1, recv, 7);
    EXPECT_EQ(last.CountWrong(&first), 1) << Name(dtype);
  }
}

TEST(CaseOfSize, CountsAsNcclTestsDo) {
  EXPECT_EQ(CaseOfSize(TransferKind::kAllReduce, 1024, 4, true).count, 256);
  EXPECT_EQ(CaseOfSize(TransferKind::kAllGather, 1024, 4, true).count, 64);
  EXPECT_EQ(CaseOfSize(TransferKind::kReduceScatter, 4, 4, true).count, 1);
  EXPECT_EQ(SizeBytes({TransferKind::kReduceScatter, 64, true}, 4), 1024);
  EXPECT_EQ(SizeBytes({TransferKind::kBroadcast, 64, true}, 4), 256);
}

}  // namespace
}  // namespace engine::bench
