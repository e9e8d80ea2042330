// An image in another size.
#pragma once

#include <cstdint>

#include "image.h"

namespace engine::images {

// One axis: output pixel i of `count` stands for [begin + i * scale, begin + (i + 1) * scale) of
// the source, whose pixels [first, last) may be looked at.
struct Axis {
  double begin = 0, scale = 1;
  int64_t count = 0;
  int64_t first = 0, last = 0;
};

// kBilinear weights a source pixel by its distance from the centre, up to one source or output
// pixel, whichever is larger: antialiased, as Pillow's resize and torchvision's Resize do. kArea is
// the mean of what an output pixel covers.
enum class Filter { kBilinear, kArea };

// Writes (channels, rows, columns), from 0 to 1.
void Resample(const Image& image, const Axis& rows, const Axis& columns, Filter filter, float* out);

}  // namespace engine::images
