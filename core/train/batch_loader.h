// Batches of one rank, made ready ahead of the step by a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/dataset.h"

namespace engine::train {

struct BatchOptions {
  Split split = Split::kTrain;
  uint64_t seed = 1;
  int64_t global_batch = 1;  // samples of one step over all ranks
  int32_t rank = 0;
  int32_t world_size = 1;
  bool shuffle = true;
  int32_t prefetch = 2;        // batches made ahead of the one in use; 0 .. 1024
  int64_t timeout_ms = 60000;  // for a batch to be made, once it is asked for
  int64_t first_step = 0;      // of the first batch, counted from 0 over all epochs
};

// The largest number of samples that a rank gets in one step: ceil(global_batch / world_size).
int64_t MaxBatchOfRank(const BatchOptions& options);

// How far a run has come in its data, whatever the size of its batches.
struct SamplePosition {
  int64_t epoch = 0;
  int64_t samples = 0;  // of its order that have been seen
};

// After `steps` steps over `size` samples (both as in a BatchLoader, at least 1 sample).
SamplePosition PositionAfter(int64_t steps, int64_t size, int64_t global_batch);

// BatchOptions::first_step to go on from `position`. With batches of another size than before a
// part of the first one may have been seen; none is left out.
int64_t StepFrom(const SamplePosition& position, int64_t size, int64_t global_batch);

struct Batch {
  int64_t samples = 0;         // of this rank, 0 .. MaxBatchOfRank
  int64_t global_samples = 0;  // of all ranks: less than global_batch in the last step of an epoch
  int64_t first_sample = 0;    // position of this rank's first sample among those of all ranks
  uint64_t epoch = 0;
  int64_t step_in_epoch = 0;
  // (samples, shape): the first input and the first target, null if there is none, then further
  // inputs and further targets.
  const void* input = nullptr;
  const void* target = nullptr;
  std::span<const void* const> others;
};

// Step s of an epoch covers positions [s * global_batch, min((s + 1) * global_batch, size)) of the
// epoch's order, split over the ranks in contiguous shares that differ by at most one sample,
// larger ones first. The order is a permutation that depends on seed, epoch and position only, so N
// ranks together see in each step what one rank sees. A rank with an empty share gets a batch of 0
// samples.
class BatchLoader {
 public:
  // `dataset`, opened, is borrowed and must outlive the loader. kInvalidArgument when it is empty
  // or an option is out of range; kResourceExhausted when the batches do not fit into memory.
  static Result<std::unique_ptr<BatchLoader>> Create(const Dataset& dataset,
                                                     const BatchOptions& options);
  virtual ~BatchLoader() = default;
  // The next batch, that of BatchOptions::first_step at first; valid until the next call. After the
  // last one of an epoch the next epoch begins. No allocation after the first call. When the
  // dataset fails, the batches made before are still returned, and then its error by every call.
  // For one thread at a time.
  virtual Result<const Batch*> Next() = 0;
  virtual int64_t steps_per_epoch() const = 0;

 protected:
  BatchLoader() = default;
};

}  // namespace engine::train
