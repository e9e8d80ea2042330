#include "image.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <new>

#include "decode.h"

namespace engine::images {

void Image::ReadRow(int64_t row, float* out) const {
  const int64_t count = columns * channels;
  if (!wide) {
    const uint8_t* const from = bytes.data() + row * count;
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(from[i]) / 255.0f;
    return;
  }
  const uint8_t* const from = bytes.data() + row * count * 2;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t value;
    std::memcpy(&value, from + 2 * i, sizeof value);
    out[i] = static_cast<float>(value) / 65535.0f;
  }
}

bool IsImageName(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos || dot == 0) return false;
  std::string end(name.substr(dot + 1));
  std::ranges::transform(end, end.begin(), [](unsigned char c) { return std::tolower(c); });
  return end == "png" || end == "jpg" || end == "jpeg";
}

bool Prepare(int64_t rows, int64_t columns, int64_t channels, bool wide, Image* image,
             char* message) noexcept {
  if (rows < 1 || columns < 1 || rows > kMaxPixels / columns) {
    std::snprintf(message, kMessageBytes, "%lld x %lld pixels are none, or more than 2^28",
                  static_cast<long long>(rows), static_cast<long long>(columns));
    return false;
  }
  image->rows = rows;
  image->columns = columns;
  image->channels = channels;
  image->wide = wide;
  try {
    image->bytes.resize(static_cast<size_t>(rows * columns * channels * (wide ? 2 : 1)));
  } catch (const std::bad_alloc&) {
    std::snprintf(message, kMessageBytes, "no memory for %lld x %lld pixels",
                  static_cast<long long>(rows), static_cast<long long>(columns));
    return false;
  }
  return true;
}

Result<Image> DecodeImage(const std::string& path, std::span<const uint8_t> file,
                          int64_t channels) {
  constexpr uint8_t kPng[] = {0x89, 'P', 'N', 'G'}, kJpeg[] = {0xff, 0xd8, 0xff};
  const auto begins = [&](std::span<const uint8_t> magic) {
    return file.size() >= magic.size() && std::equal(magic.begin(), magic.end(), file.begin());
  };
  Image image;
  char message[kMessageBytes] = "neither PNG nor JPEG, by its first bytes";
  const bool good = begins(kPng)    ? DecodePng(file, channels, &image, message)
                    : begins(kJpeg) ? DecodeJpeg(file, channels, &image, message)
                                    : false;
  if (good) return image;
  return Status::Error(StatusCode::kBadData, "%s: the image is damaged or cannot be read: %s",
                       path.c_str(), message);
}

}  // namespace engine::images
