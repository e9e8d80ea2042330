// Text as bytes: the tokens are the 256 values of a byte.
#pragma once

#include <cstdint>
#include <string>

#include "core/data/dataset.h"
#include "engine/status.h"

namespace engine {

struct TextOptions {
  std::string path;      // a file or a folder; "." is the current folder
  int32_t context = 64;  // bytes of a sample
  double holdout = 0.1;  // in [0, 1): share of each file, from its end
  uint64_t seed = 1;
};

// A sample is `context` bytes and, as targets, the byte that follows each of them.
//
// The beginnings of all files, one after the other, are the text to train on, and their held-out
// ends the text to evaluate on; a sample may begin in one file and end in the next, but never holds
// bytes of both texts. Sample i of an epoch begins at i * context + offset, where the offset, less
// than `context`, depends on seed and epoch: so every epoch cuts the text in other places. Samples
// for evaluation begin at i * context.
Result<DatasetPair> OpenText(const TextOptions& options);

}  // namespace engine
