// Images with one of ten classes, in the files of MNIST and of the sets made in its image.
#pragma once

#include <string>

#include "core/data/dataset.h"
#include "engine/status.h"

namespace engine {

struct MnistOptions {
  std::string images;
  std::string labels;
  std::string eval_images;  // both or none
  std::string eval_labels;
  double holdout = 0.1;  // in [0, 1): share of `images`, from their end; only without eval_images
};

// Samples of (1, rows, columns) float32: (value / 255 - 0.1307) / 0.3081, that is with mean 0 and
// standard deviation 1 over the training images of MNIST.
Result<DatasetPair> OpenMnist(const MnistOptions& options);

}  // namespace engine
