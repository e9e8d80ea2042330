// Random numbers with a rule behind them; nothing is read.
#pragma once

#include <cstdint>

#include "core/data/dataset.h"
#include "engine/status.h"

namespace engine {

struct SyntheticOptions {
  int64_t samples = 1024;
  int64_t eval_samples = 256;
  Shape shape = {32};  // of one sample
  int32_t classes = 10;
  uint64_t seed = 1;
};

// Inputs are uniform with mean 0 and standard deviation 1. The class is the largest of `classes`
// fixed random linear functions of the first 64 numbers of the sample, so that a large sample is as
// cheap to label as a small one and one linear layer can learn the rule.
Result<DatasetPair> OpenSynthetic(const SyntheticOptions& options);

}  // namespace engine
