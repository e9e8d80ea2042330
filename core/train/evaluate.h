// The loss of a model over held-out samples.
#pragma once

#include <cstdint>

#include "core/exec/executor.h"
#include "core/train/batch_source.h"
#include "core/train/observer.h"

namespace engine::train {

// Forward passes over the batches that are requested of `data`, until `max_samples` samples (0: all),
// summed over the ranks of `executor` when it is not null.
Result<EvaluationReport> EvaluateModel(exec::ModelMemory& memory, exec::Executor* executor,
                                       BatchSource& data, const BatchRequest& batches,
                                       int64_t max_samples);

}  // namespace engine::train
