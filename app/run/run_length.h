// Where a run begins, and where it ends.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/store.h"
#include "core/train/run_config.h"
#include "engine/dataset.h"
#include "engine/status.h"

namespace engine::run {

// What a run trains on, as far as its length depends on it. Each at least 1.
struct TrainingAmount {
  int64_t samples = 0;
  int64_t targets_per_sample = 0;
  int64_t global_batch = 0;
};
TrainingAmount AmountOf(const DatasetInfo& data, int64_t global_batch);

// The number of the last step of a run: that of RunLength::steps, or the first one with which the
// run has seen so many epochs, or tokens, of its data. kConfig when it is done already at `start`, but
// `again`, after the loss of a rank.
Result<int64_t> LastStep(const train::RunLength& length, const TrainingAmount& amount,
                         const train::RunStart& start, bool again = false);

// For ranks that take the place of lost ones (RankInfo::incarnation): by then the file that the run
// went on from may be a newer one. Rank 0 says where the run began, they read it.
Status PublishRunStart(base::Store& store, const train::RunStart& start);
Result<train::RunStart> PublishedRunStart(base::Store& store, int64_t timeout_ms);

}  // namespace engine::run
