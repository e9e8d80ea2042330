// batch_norm and dropout as plain loops in double precision: ops that behave otherwise in
// evaluation. Tensors are channels-last.
#pragma once

#include <cstdint>

#include "tests/conformance/ops/reference_ops.h"

namespace engine::test {

// Inputs: x, weight, bias, running mean, running variance. While it trains.
ReferenceOp ReferenceBatchNorm(double eps);
// In evaluation; it has no backward.
ReferenceOp ReferenceBatchNormEvaluation(double eps);

// Mean and variance (biased) of each channel of x (..., C); zeros when there are no rows.
struct ChannelStatistics {
  Values mean, variance;
  int64_t count = 0;  // of values per channel

  explicit ChannelStatistics(const Tensor& x);
};

// What random numbers of an op are a function of, besides the position in a sample.
struct RandomKey {
  uint64_t seed = 17;
  uint64_t step = 3;
  uint64_t node = 5;
  uint64_t first_sample = 11;
};

// Whether element `position` of the batch of all ranks is kept. The function is the same in all op
// libraries, so that a run on other devices sees the same masks.
bool DropoutKeeps(double rate, const RandomKey& key, uint64_t position);

ReferenceOp ReferenceDropout(double rate, const RandomKey& key);

}  // namespace engine::test
