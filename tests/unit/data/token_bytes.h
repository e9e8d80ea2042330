// Small token files in the format of llm.c.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace engine::test {

inline std::string TokenHeader(int32_t count, int32_t magic = 20240520, int32_t version = 1) {
  std::string bytes;
  for (const int32_t number : {magic, version, count}) {
    for (const int shift : {0, 8, 16, 24}) bytes += static_cast<char>(number >> shift);
  }
  bytes.resize(256 * 4);
  return bytes;
}

inline std::string TokenBytes(const std::vector<int>& tokens) {
  std::string bytes = TokenHeader(static_cast<int32_t>(tokens.size()));
  for (const int token : tokens) {
    bytes += static_cast<char>(token & 0xff);
    bytes += static_cast<char>(token >> 8);
  }
  return bytes;
}

// `count` tokens from `first` on, each one more than the one before.
inline std::vector<int> Counting(int first, int count) {
  std::vector<int> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

}  // namespace engine::test
