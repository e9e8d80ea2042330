// What the index arithmetic of attention promises beside right results, which are those of the kernels
// (attention_test.cc): banks, and no work for nothing.
#include "kernels/attention_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace engine::cuda_ops {
namespace {

// A matrix load reads eight rows of 16 bytes at a time: they must cover all 32 banks of 4 bytes.
template <int kColumns>
void ExpectNoBankConflicts() {
  for (int first = 0; first < 64; first += 8) {
    for (int chunk = 0; chunk < kColumns / 8; ++chunk) {
      std::set<int> banks;
      for (int row = first; row < first + 8; ++row) {
        banks.insert(ChunkOffset<kColumns>(row, chunk) * 2 / 16 % 8);
      }
      EXPECT_EQ(banks.size(), 8u);
    }
  }
}

TEST(ChunkOffset, EightRowsLieInDifferentBanks) {
  ExpectNoBankConflicts<64>();
  ExpectNoBankConflicts<128>();
}

// Every pair of a query and a key that it sees is in a tile that is visited, and no tile is visited
// for nothing.
TEST(Blocks, VisitWhatTheirRowsSee) {
  constexpr int32_t kOwned = 128, kVisited = 64;
  for (const bool causal : {false, true}) {
    for (const int32_t length : {1, 63, 64, 65, 128, 200, 257}) {
      const AttentionShape shape = {1, length, 1, 64, causal};
      const auto sees = [&](int32_t query, int32_t key) { return !causal || key <= query; };
      for (int32_t first = 0; first < length; first += kOwned) {
        const TileRange keys = KeyTiles(shape, first, kOwned, kVisited);
        const TileRange queries = QueryTiles(shape, first, kVisited);
        for (int32_t tile = 0; tile < TileCount(length, kVisited); ++tile) {
          bool has_key = false, has_query = false;
          for (int32_t own = first; own < std::min(first + kOwned, length); ++own) {
            for (int32_t i = tile * kVisited; i < std::min((tile + 1) * kVisited, length); ++i) {
              has_key |= sees(own, i);
              has_query |= sees(i, own);
            }
          }
          EXPECT_EQ(has_key, tile >= keys.begin && tile < keys.end) << length << " " << tile;
          EXPECT_EQ(has_query, tile >= queries.begin && tile < queries.end)
              << length << " " << tile;
        }
        EXPECT_LE(keys.end, TileCount(length, kVisited));
        EXPECT_LE(queries.end, TileCount(length, kVisited));
      }
    }
  }
}

}  // namespace
}  // namespace engine::cuda_ops
