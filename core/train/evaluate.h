// The loss of a model over held-out samples.
#pragma once

#include <cstdint>

#include "core/data/batch_loader.h"
#include "core/data/dataset.h"
#include "core/exec/executor.h"
#include "core/train/observer.h"

namespace engine {

// What the data asks of a model.
struct ModelInputs {
  Shape input_shape;  // of one sample
  DType input_dtype = DType::kFloat32;
  Shape target_shape;  // of one sample; logits are (samples, target_shape, classes)
  int64_t classes = 0;
  int64_t max_samples = 1;
  bool with_loss = true;  // false: a graph for inference, which ends at the logits
};
ModelInputs InputsOf(const DatasetInfo& info, int64_t max_samples, bool with_loss);

// Forward passes over held-out samples, summed over the ranks of `executor` when it is not null.
struct EvaluationRequest {
  const Dataset& data;
  BatchOptions batches;
  int64_t max_samples = 0;  // 0: all
};
Result<EvaluationReport> EvaluateModel(ModelMemory& memory, Executor* executor,
                                       const EvaluationRequest& request);

}  // namespace engine
