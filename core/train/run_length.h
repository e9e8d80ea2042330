// Where a run begins, where it ends, and where it stands in its data.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/store.h"
#include "core/train/run_config.h"
#include "engine/status.h"

namespace engine::train {

// Of a run from the beginning by default.
struct RunStart {
  int64_t step = 0;         // steps done; the next one is step + 1
  int64_t first_batch = 0;  // BatchRequest::first_step of the next step
};

// How far a run has come in its data, whatever the size of its batches.
struct SamplePosition {
  int64_t epoch = 0;
  int64_t samples = 0;  // of its order that have been seen
};

// The position after `step` of a run that began at `start`, for its checkpoint. Both sizes are at
// least 1.
SamplePosition PositionAt(int64_t step, const RunStart& start, int64_t samples,
                          int64_t global_batch);

// RunStart::first_batch to go on from `position`. With batches of another size than before a part
// of the first one may have been seen; none is left out.
int64_t BatchFrom(const SamplePosition& position, int64_t samples, int64_t global_batch);

// What a run trains on, as far as its length depends on it. Each at least 1.
struct TrainingAmount {
  int64_t samples = 0;
  int64_t targets_per_sample = 0;
  int64_t global_batch = 0;
};

// The number of the last step of a run: that of RunLength::steps, or the first one with which the
// run has seen so many epochs, or tokens, of its data. kConfig when it is done already at `start`.
Result<int64_t> LastStep(const RunLength& length, const TrainingAmount& amount,
                         const RunStart& start);

// For ranks that take the place of lost ones (RankInfo::incarnation): by then the file that the run
// went on from may be a newer one. Rank 0 says where the run began, they read it.
Status PublishRunStart(base::Store& store, const RunStart& start);
Result<RunStart> PublishedRunStart(base::Store& store, int64_t timeout_ms);

}  // namespace engine::train
