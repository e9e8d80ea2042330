// Index arithmetic of attention.
#include "kernels/attention_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace engine::cuda_ops {
namespace {

template <int kColumns>
void ExpectPermutation() {
  constexpr int kRows = 128, kChunks = kColumns / 8;
  std::set<int> offsets;
  for (int row = 0; row < kRows; ++row) {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int offset = ChunkOffset<kColumns>(row, chunk);
      EXPECT_EQ(offset % 8, 0);
      EXPECT_EQ(offset / kColumns, row);
      offsets.insert(offset);
    }
  }
  EXPECT_EQ(offsets.size(), static_cast<size_t>(kRows * kChunks));
}

TEST(ChunkOffset, IsAPermutationOfEachRow) {
  ExpectPermutation<64>();
  ExpectPermutation<128>();
}

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

TEST(Fragments, LanesOfALoadNameEveryRowOfItsMatricesOnce) {
  for (int lane = 0; lane < 32; ++lane) {
    const int matrix = lane / 8, row = lane % 8;
    // Left factor: rows 0-7 and 8-15 at the first eight columns, then at the second.
    EXPECT_EQ(LeftRow(lane), matrix % 2 * 8 + row);
    EXPECT_EQ(LeftChunk(lane), matrix / 2);
    // Right factors: a tile's first and second eight columns, then those of the next tile.
    EXPECT_EQ(RightRow(lane), matrix / 2 * 8 + row);
    EXPECT_EQ(RightChunk(lane), matrix % 2);
  }
}

TEST(Fragments, AccumulatorCoversItsTile) {
  std::set<int> elements;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      elements.insert(AccumulatorRow(lane, i) * 8 + AccumulatorColumn(lane, i));
    }
    EXPECT_EQ(AccumulatorColumn(lane, 0) % 2, 0);
    EXPECT_EQ(AccumulatorColumn(lane, 1), AccumulatorColumn(lane, 0) + 1);
  }
  EXPECT_EQ(elements.size(), 128u);
  EXPECT_EQ(*elements.begin(), 0);
  EXPECT_EQ(*elements.rbegin(), 127);
}

TEST(Blocks, EveryTileOfEveryHeadHasOne) {
  const AttentionShape shape = {3, 200, 5, 64, true};
  const int32_t tiles = TileCount(shape.length, 64);
  for (const bool last_first : {false, true}) {
    std::set<std::tuple<int32_t, int32_t, int32_t>> places;
    for (int64_t block = 0; block < int64_t{3} * 5 * tiles; ++block) {
      const BlockPlace place = PlaceOfBlock(block, shape, tiles, last_first);
      EXPECT_TRUE(place.sample >= 0 && place.sample < 3 && place.head >= 0 && place.head < 5 &&
                  place.tile >= 0 && place.tile < tiles);
      places.insert({place.sample, place.head, place.tile});
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(3 * 5 * tiles));
    EXPECT_EQ(PlaceOfBlock(0, shape, tiles, last_first).tile, last_first ? tiles - 1 : 0);
  }
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

TEST(Shape, OffsetsAreThoseOfTheLayout) {
  const AttentionShape shape = {2, 7, 3, 64, false};
  // qkv (2, 7, 3, 3, 64), y (2, 7, 3, 64), statistics (2, 3, 7)
  EXPECT_EQ(shape.packed_offset(1, 2, QkvPart::kKey), ((1 * 7 * 3 + 1) * 3 + 2) * 64);
  EXPECT_EQ(shape.packed_width(), 3 * 3 * 64);
  EXPECT_EQ(shape.row_offset(1, 2), (1 * 7 * 3 + 2) * 64);
  EXPECT_EQ(shape.statistics_offset(1, 2), (1 * 3 + 2) * 7);
}

}  // namespace
}  // namespace engine::cuda_ops
