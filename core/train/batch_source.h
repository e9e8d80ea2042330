// Where the batches of a run come from. app/data has the source over a dataset plugin.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/dataset.h"

namespace engine::train {

// Of numbers that are not negative; `b` is at least 1.
constexpr int64_t CeilDiv(int64_t a, int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// A rank's share of the steps over one split of the data.
struct BatchRequest {
  Split split = Split::kTrain;
  int64_t global_batch = 1;  // samples of one step over all ranks
  int32_t rank = 0;
  int32_t world_size = 1;
  int64_t first_step = 0;  // of the first batch, counted from 0 over all epochs

  // The largest number of samples that the rank gets in one step: ceil(global_batch / world_size).
  int64_t MaxSamples() const { return CeilDiv(global_batch, world_size); }
};

struct Batch {
  int64_t samples = 0;         // of this rank, 0 .. MaxSamples
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

class BatchStream {
 public:
  virtual ~BatchStream() = default;
  // The next batch, that of BatchRequest::first_step at first; valid until the next call. After the
  // last one of an epoch the next epoch begins. For one thread at a time.
  virtual Result<const Batch*> Next() = 0;
  virtual int64_t steps_per_epoch() const = 0;
};

// N ranks together get in each step what one rank would get. A rank with an empty share gets a
// batch of 0 samples.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Reads what it needs. Once, before anything else; ranks have agreed on their configuration.
  virtual Status Open() = 0;
  virtual DatasetInfo info() const = 0;
  // Of samples that there are; the stream borrows the source.
  virtual Result<std::unique_ptr<BatchStream>> Batches(const BatchRequest& request) = 0;
};

}  // namespace engine::train
