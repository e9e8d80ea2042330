// Datasets by configuration.
#pragma once

#include "app/config/engine.pb.h"
#include "core/data/dataset.h"
#include "engine/status.h"

namespace engine {

// kMissingInput or kBadData, with file and offset, when it cannot be read; kConfig, with the key,
// when no kind is given or a value is out of range. `seed` decides what may be random in a sample
// (where text is cut, the rule behind synthetic data, how an image is changed), not the order,
// which is BatchLoader's.
Result<DatasetPair> OpenDataset(const config::Data& data, uint64_t seed);

}  // namespace engine
