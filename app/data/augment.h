// Images that look a little different in every epoch.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/dataset.h"

namespace engine::data {

struct AugmentOptions {
  int32_t crop_padding = 0;
  bool flip = false;
  uint64_t seed = 1;
};

// `data`, opened, with every image to train on first moved by up to crop_padding rows and columns (it
// is cut out of itself with so many zeros on each side, all offsets alike), then, with `flip`,
// mirrored left to right with probability 1/2. Both depend on seed, epoch and index of the sample
// only, so they are the same for any number of ranks, and in a run that was interrupted. The zeros
// are those of the normalised numbers: the mean of the data.
//
// kConfig when the dataset has no images, or crop_padding is not less than their rows and columns.
Result<std::unique_ptr<Dataset>> AugmentImages(std::unique_ptr<Dataset> data,
                                               const AugmentOptions& options);

}  // namespace engine::data
