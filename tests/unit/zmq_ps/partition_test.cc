#include "partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace engine::zmq_ps {
namespace {

constexpr PartitionRule kRule{
    .servers = 4, .world_size = 3, .slice_bytes = 4096, .min_slice_bytes = 1024};

std::vector<Slice> CutUp(const Transfer& transfer, uint64_t round = 1,
                         const PartitionRule& rule = kRule) {
  std::vector<Slice> slices;
  Cut(transfer, round, rule, &slices);
  return slices;
}

TEST(Partition, SlicesCoverTheBufferOnceInWholeRowsAndAreSmallEnough) {
  for (const TransferKind kind : {TransferKind::kAllReduce, TransferKind::kReduceScatter,
                                  TransferKind::kAllGather, TransferKind::kBroadcast}) {
    const bool has_parts = kind == TransferKind::kReduceScatter || kind == TransferKind::kAllGather;
    for (const uint64_t row : {1u, 96u}) {
      for (const uint64_t rows : {0, 1, 3, 7, 1000, 1024, 1025, 5000, 123457}) {
        const uint64_t count = rows * row;
        std::vector<Slice> slices;
        Cut({.kind = kind, .root = 2, .count = static_cast<int64_t>(count), .key = 3}, 1, kRule,
            &slices, row);
        ASSERT_FALSE(slices.empty());
        uint64_t next = 0;
        for (const Slice& slice : slices) {
          EXPECT_EQ(slice.offset, next);
          EXPECT_EQ(slice.count % row, 0u);
          EXPECT_LE(slice.count * sizeof(float), kRule.slice_bytes);
          EXPECT_LT(slice.server, kRule.servers);
          if (has_parts && slice.count > 0) {
            EXPECT_EQ(slice.owner, slice.offset / count);
            EXPECT_EQ(slice.owner, (slice.offset + slice.count - 1) / count);
          }
          if (kind == TransferKind::kBroadcast) {
            EXPECT_EQ(slice.owner, 2u);
          }
          next += slice.count;
        }
        EXPECT_EQ(next, has_parts ? 3 * count : count);
      }
    }
  }
}

TEST(Partition, LargeBuffersAreSpreadEvenly) {
  for (const int64_t count : {1024, 5000, 123457}) {
    std::vector<uint64_t> elements(kRule.servers);
    for (const Slice& slice : CutUp({.count = count, .key = 3})) {
      elements[slice.server] += slice.count;
    }
    const auto [least, most] = std::minmax_element(elements.begin(), elements.end());
    EXPECT_LE(*most - *least, 40u) << count;  // a slice differs from another by one element
  }
}

TEST(Partition, SmallBuffersStayWholeAndAreSpreadByKey) {
  std::vector<int> uses(kRule.servers);
  for (uint64_t key = 1; key <= 400; ++key) {
    const std::vector<Slice> slices = CutUp({.count = 100, .key = key});
    ASSERT_EQ(slices.size(), 1u);
    ++uses[slices[0].server];
  }
  for (const int n : uses) EXPECT_GT(n, 50);
}

// Ranks that disagree about size or kind meet at one server, which sees it.
TEST(Partition, KeyAloneChoosesTheFirstServer) {
  for (uint64_t key = 1; key < 30; ++key) {
    const uint32_t server = CutUp({.count = 100, .key = key})[0].server;
    EXPECT_EQ(CutUp({.count = 100000, .key = key}, 9)[0].server, server);
    EXPECT_EQ(CutUp({.kind = TransferKind::kBarrier, .key = key})[0].server, server);
  }
}

}  // namespace
}  // namespace engine::zmq_ps
