// Where a run begins, and where it ends.
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

  // That of the step after `done`. Batches are numbered as the steps are from here on; how many
  // came before depends on the size that they had.
  int64_t BatchAfter(int64_t done) const { return first_batch + (done - step); }
};

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
