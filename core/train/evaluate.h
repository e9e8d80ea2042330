// The loss of a model over held-out samples.
#pragma once

#include <cstdint>

#include "core/exec/executor.h"
#include "core/train/batch_loader.h"
#include "core/train/observer.h"

namespace engine::train {

// Forward passes over held-out samples, summed over the ranks of `executor` when it is not null.
struct EvaluationRequest {
  const Dataset& data;
  BatchOptions batches;     // of Split::kHeldOut
  int64_t max_samples = 0;  // 0: all
};
Result<EvaluationReport> EvaluateModel(exec::ModelMemory& memory, exec::Executor* executor,
                                       const EvaluationRequest& request);

}  // namespace engine::train
