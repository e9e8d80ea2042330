// Pictures: PNG by libpng, JPEG by libjpeg-turbo.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"

namespace engine::images {

// Values are 0 to 255, or 0 to 65535 where `wide`, in the order of the processor; rows one after
// the other, the channels of a pixel together. One channel is grey, three are red, green, blue.
struct Image {
  int64_t rows = 0, columns = 0, channels = 0;
  bool wide = false;
  std::vector<uint8_t> bytes;

  // Row `row` as numbers from 0 to 1, columns * channels of them.
  void ReadRow(int64_t row, float* out) const;
};

// By the name of the file: .png, .jpg or .jpeg, in small letters or capitals.
bool IsImageName(std::string_view name);

// Grey where `channels` is 1, colours where it is 3; each becomes the other (luma of ITU-R 601 as
// both libraries have it). Transparency is left out, as by Pillow's convert("RGB"); 16 bits stay 16
// bits. Gamma, colour profiles and orientation are not applied. kBadData with `path` and the
// library's words for damaged files, also JPEGs that end early, and for more than 2^28 pixels.
Result<Image> DecodeImage(const std::string& path, std::span<const uint8_t> file, int64_t channels);

}  // namespace engine::images
