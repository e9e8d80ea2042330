// Small IDX files, plain and gzip.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace engine::test {

inline std::string IdxHeader(std::initializer_list<uint32_t> extents) {
  std::string bytes = {0, 0, 8, static_cast<char>(extents.size())};
  for (const uint32_t extent : extents) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(extent >> shift);
  }
  return bytes;
}

// `count` images of 2 x 3 pixels; pixel j of image i is 10 * i + j.
inline std::string IdxImages(uint32_t count) {
  std::string bytes = IdxHeader({count, 2, 3});
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t j = 0; j < 6; ++j) bytes += static_cast<char>(10 * i + j);
  }
  return bytes;
}

// The label of image i is i % 10.
inline std::string IdxLabels(uint32_t count) {
  std::string bytes = IdxHeader({count});
  for (uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

inline std::string Gzip(std::string_view plain) {
  z_stream stream{};
  constexpr int kGzipWindow = 15 + 16;
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, plain.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

}  // namespace engine::test
