// What the two decoders share with DecodeImage, and nobody else.
#pragma once

#include <cstdint>
#include <span>

#include "image.h"

namespace engine::images {

inline constexpr int64_t kMaxPixels = int64_t{1} << 28;

// A C library leaves its functions by longjmp: of what these hold nothing has a destructor, and
// what they fill is the caller's. `message`, of at least kMessageBytes, is what the library says;
// true: good.
inline constexpr int kMessageBytes = 200;
bool DecodePng(std::span<const uint8_t> file, int64_t channels, Image* image, char* message);
bool DecodeJpeg(std::span<const uint8_t> file, int64_t channels, Image* image, char* message);

// Gives `image` its size and memory; false with a message if it is empty or larger than kMaxPixels.
bool Prepare(int64_t rows, int64_t columns, int64_t channels, bool wide, Image* image,
             char* message) noexcept;

}  // namespace engine::images
