// Small colour images with one of ten classes: the binary version of CIFAR-10 (Krizhevsky: Learning
// multiple layers of features from tiny images, 2009; www.cs.toronto.edu/~kriz/cifar.html).
//
//   file   = record{1 ..}                    10,000 in the files of the set
//   record = label plane plane plane         red, green, blue: 3073 bytes
//   label  = one byte, 0 .. 9
//   plane  = one byte for each of 32 x 32 pixels, row by row
#pragma once

#include <string>

#include "core/data/dataset.h"
#include "engine/status.h"

namespace engine {

// Trains on data_batch_1.bin to data_batch_5.bin of `folder` and holds out test_batch.bin; files of
// any number of records are taken. Samples of (3, 32, 32) float32: each plane with mean 0 and
// standard deviation 1 over the 50,000 training images of CIFAR-10. Every label is checked here.
// kConfig without a folder; kMissingInput names the file; kBadData names file and record.
Result<DatasetPair> OpenCifar10(const std::string& folder);

}  // namespace engine
