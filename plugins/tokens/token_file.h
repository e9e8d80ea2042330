// The token files of llm.c (github.com/karpathy/llm.c, dev/data/data_common.py), of GPT-2's kind.
//
//   file   = magic version count zero{253} token{count}
//   magic  = int32, 20240520
//   version = int32, 1
//   count  = int32
//   token  = uint16
//
// All little-endian. The kind for Llama 3 (magic 20240801, version 7) has tokens of 32 bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "kit/file.h"

namespace engine::tokens {

class TokenFile {
 public:
  static constexpr int64_t kHeaderBytes = 256 * 4;
  static constexpr int64_t kTokenBytes = 2;

  // kMissingInput; kBadData, with the path, when the header is not as above or the file has not
  // exactly the bytes that it announces. Tokens are not looked at.
  static Result<TokenFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // tokens

  // Writes tokens [begin, begin + count), which must be inside of the file. kBadData, with path and
  // place of the first one that is not less than `vocabulary`. [any-thread]
  Status Read(int64_t begin, int64_t count, int32_t vocabulary, int32_t* tokens) const;

  // The bytes of tokens [begin, begin + count).
  std::span<const uint8_t> BytesOf(int64_t begin, int64_t count) const;

 private:
  TokenFile(std::string path, kit::MappedFile file, int64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {}

  std::string path_;
  kit::MappedFile file_;
  int64_t size_;
};

}  // namespace engine::tokens
