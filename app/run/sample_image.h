// What a sample looks like.
#pragma once

#include <cstdint>
#include <string>

#include "core/train/batch_source.h"

namespace engine::run {

// The first input of sample `index` of a split, in the order of the data, as an image for a page (a data
// URL of a BMP): float32 of (1 or 3, rows, columns), black where it is smallest and white where it is
// largest. Empty for other inputs.
Result<std::string> SampleImage(train::BatchSource& data, Split split, int64_t index);

}  // namespace engine::run
