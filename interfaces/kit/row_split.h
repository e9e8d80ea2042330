// Which rows of a table, or files of a list, are held out for evaluation: a share of them, chosen
// by a hash. Compiled into the plugin that includes it and no part of the ABI.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "engine/dataset.h"

namespace engine::kit {

// A row is held out if a random number of seed and row is below the share: rows that are sorted, by
// class or by time, need no shuffling before, and a row stays where it is when others are added
// behind it. Two bits for each row are kept.
class RowSplit {
 public:
  RowSplit() = default;  // of no rows

  // Of `rows` rows; with a share of 0 none is held out, and nothing is kept. `seed` is that of the
  // run (Dataset::Open), so that all ranks, and a run that goes on, hold out the same rows; another
  // seed trains on rows that this one has evaluated on.
  RowSplit(int64_t rows, double share, uint64_t seed)
      : rows_(rows), words_(share > 0 ? static_cast<size_t>(rows + 63) / 64 : 0) {
    for (int64_t row = 0; row < rows && share > 0; ++row) {
      const uint64_t bits = RandomBits({seed, kStream, static_cast<uint64_t>(row)});
      if (static_cast<double>(bits >> 11) * 0x1p-53 >= share) continue;
      words_[static_cast<size_t>(row / 64)] |= uint64_t{1} << (row % 64);
    }
    for (const uint64_t word : words_) {
      before_.push_back(held_out_);
      held_out_ += std::popcount(word);
    }
  }

  // About the share of the rows is held out: each is drawn for itself. [any-thread]
  int64_t count(Split split) const noexcept {
    return split == Split::kHeldOut ? held_out_ : rows_ - held_out_;
  }

  // The row that sample `index`, less than count(split), is: rows keep their order. Logarithmic in
  // the number of rows. [any-thread]
  int64_t Row(Split split, int64_t index) const noexcept {
    if (words_.empty()) return index;
    const bool held_out = split == Split::kHeldOut;
    // The last word with at most `index` samples of the split before it.
    size_t low = 0, high = words_.size();
    while (high - low > 1) {
      const size_t middle = (low + high) / 2;
      (Before(held_out, middle) <= index ? low : high) = middle;
    }
    uint64_t word = held_out ? words_[low] : ~words_[low];
    for (int64_t skip = index - Before(held_out, low); skip > 0; --skip) word &= word - 1;
    return static_cast<int64_t>(low) * 64 + std::countr_zero(word);
  }

 private:
  static constexpr uint64_t kStream = 5;  // of the seed, beside those of the engine

  int64_t Before(bool held_out, size_t word) const noexcept {
    return held_out ? before_[word] : static_cast<int64_t>(word) * 64 - before_[word];
  }

  // Constant after construction: a bit for each row, and how many are set before each word.
  int64_t rows_ = 0, held_out_ = 0;
  std::vector<uint64_t> words_;
  std::vector<int64_t> before_;
};

}  // namespace engine::kit
