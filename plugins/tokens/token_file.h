// Tokens in files: those of llm.c (github.com/karpathy/llm.c, dev/data/data_common.py), arrays of
// integers of NumPy (data_kit/npy.h), and tokens alone, as nanoGPT's prepare.py writes them.
//
//   file    = llm.c | .npy | token{}
//   llm.c   = magic version count zero{253} token{count}
//   magic   = int32, 20240520: GPT-2, version 1, tokens are uint16
//                    20240801: Llama 3, version 7, tokens are uint32
//   version, count = int32
//
// All of llm.c and of tokens alone is little-endian.
#pragma once

#include <cstdint>
#include <string>

#include "data_kit/elements.h"
#include "engine/status.h"

namespace engine::tokens {

// What a file is taken for. Tokens alone begin with nothing that would tell them, so they are never
// guessed.
enum class Format { kGuess, kUint16, kUint32 };

// The tokens of a file, mapped; none of them is looked at. kMissingInput; kBadData, with the path,
// when the header is not as above or the file has not exactly the bytes that it announces.
Result<data_kit::NumberArray> OpenTokens(const std::string& path, Format format);

// Writes tokens [begin, begin + count), which must be inside of the file. kBadData, with path and
// number of the first one that is not less than `vocabulary`. [any-thread]
Status ReadTokens(const data_kit::NumberArray& file, int64_t begin, int64_t count,
                  int32_t vocabulary, int32_t* tokens);

}  // namespace engine::tokens
