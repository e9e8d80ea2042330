// Text as tokens, made from it before: the token files of llm.c.
#pragma once

#include <cstdint>
#include <string>

#include "core/data/dataset.h"
#include "engine/status.h"

namespace engine {

struct TokensOptions {
  std::string path;            // a token file, or a folder with some
  int32_t context = 1024;      // tokens of a sample
  int32_t vocabulary = 50257;  // every token is less; that of GPT-2
  std::string eval_path;       // a token file to hold out
  double holdout =
      0.1;  // in [0, 1): share of each file, from its end; only where no file is held out
  uint64_t seed = 1;
};

// A sample is `context` tokens and, as targets, the token that follows each of them, all of one
// file. Of a folder those files are taken whose name ends with .bin and has, between anything but
// letters and digits, the word "train" (to train on) or "val" (held out, unless eval_path is
// given).
//
// Sample i of a file begins at i * context + offset, where the offset, less than `context`, depends
// on seed and epoch; samples for evaluation at i * context. Files are mapped, and a token is
// checked when it is read: Get is kBadData, with file and place, for one that is not in the
// vocabulary.
//
// The digest is of the number of tokens of each file and of parts of them, 1 MiB of each: large
// files are not read to begin a run.
//
// kMissingInput, kBadData with the file when its header is wrong, kConfig for an option.
Result<DatasetPair> OpenTokens(const TokensOptions& options);

}  // namespace engine
