#include "app/run/run_length.h"

#include <cinttypes>
#include <cmath>
#include <utility>

#include "core/train/batch_source.h"

namespace engine::run {
namespace {

using train::CeilDiv;

constexpr char kStoreKey[] = "run/start";

// All batches of a run whose length is given in epochs or tokens. The last batch of an epoch may be
// a smaller one.
int64_t BatchesOf(const train::RunLength& length, const TrainingAmount& amount) {
  const int64_t per_epoch = CeilDiv(amount.samples, amount.global_batch);
  if (length.epochs) {
    return std::llround(std::ceil(*length.epochs * static_cast<double>(per_epoch)));
  }
  const int64_t samples = CeilDiv(*length.tokens, amount.targets_per_sample);
  return samples / amount.samples * per_epoch +
         CeilDiv(samples % amount.samples, amount.global_batch);
}

}  // namespace

TrainingAmount AmountOf(const DatasetInfo& data, int64_t global_batch) {
  return {.samples = data.train_samples,
          .targets_per_sample = data.targets.empty() ? 1 : data.targets[0].shape.Count(),
          .global_batch = global_batch};
}

Result<int64_t> LastStep(const train::RunLength& length, const TrainingAmount& amount,
                         const train::RunStart& start, bool again) {
  ENGINE_CHECK(length.steps || length.epochs || length.tokens, "a run without a length");
  const int64_t last =
      length.steps ? *length.steps : start.step + (BatchesOf(length, amount) - start.first_batch);
  if (start.step == 0 || last > start.step || (again && last == start.step)) return last;
  using Goal = std::pair<const char*, double>;
  const auto [key, goal] = length.epochs ? Goal("train.epochs", *length.epochs)
                           : length.steps
                               ? Goal("train.steps", static_cast<double>(*length.steps))
                               : Goal("train.tokens", static_cast<double>(*length.tokens));
  return Status::Error(StatusCode::kConfig,
                       "the run of the checkpoint is done: it has %lld steps, and %s is %.15g; "
                       "raise it to go on",
                       static_cast<long long>(start.step), key, goal);
}

Status PublishRunStart(base::Store& store, const train::RunStart& start) {
  return store.Set(kStoreKey, std::to_string(start.step) + " " + std::to_string(start.first_batch));
}

Result<train::RunStart> PublishedRunStart(base::Store& store, int64_t timeout_ms) {
  ENGINE_ASSIGN_OR_RETURN(const std::string text, store.Get(kStoreKey, timeout_ms));
  train::RunStart start;
  if (std::sscanf(text.c_str(), "%" SCNd64 " %" SCNd64, &start.step, &start.first_batch) == 2) {
    return start;
  }
  return Status::Error(StatusCode::kInternal, "rank 0 said '%s' instead of where the run began",
                       text.c_str());
}

}  // namespace engine::run
