// How far a run has come in its data, whatever the size of its batches: runs that go on from each
// other with other sizes meet in this alone.
#pragma once

#include <cstdint>

#include "core/train/batch_source.h"

namespace engine::checkpoint {

struct SamplePosition {
  int64_t epoch = 0;
  int64_t samples = 0;  // of its order that have been seen
};

// Before `batch`, counted from the beginning of the data (BatchRequest::first_step). The last batch
// of an epoch may be a smaller one. Both sizes are at least 1, here and below.
constexpr SamplePosition PositionOf(int64_t batch, int64_t samples, int64_t global_batch) {
  const int64_t per_epoch = train::CeilDiv(samples, global_batch);
  return {.epoch = batch / per_epoch, .samples = batch % per_epoch * global_batch};
}

// The batch to go on with from `position`. With batches of another size than before a part of it
// may have been seen; none is left out.
constexpr int64_t BatchAt(const SamplePosition& position, int64_t samples, int64_t global_batch) {
  return position.epoch * train::CeilDiv(samples, global_batch) + position.samples / global_batch;
}

}  // namespace engine::checkpoint
