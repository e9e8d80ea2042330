#include "app/checkpoint/resume.h"

#include <cinttypes>
#include <cmath>
#include <cstdio>

namespace engine {
namespace {

constexpr char kStoreKey[] = "resume_point";
constexpr int64_t kCopyTimeoutMs = 60000;

std::string Differs(const std::string& what, const std::string& was, const std::string& is) {
  return "the checkpoint was written with " + what + " " + was + ", and this run has " + is;
}

std::vector<std::string> Warnings(const CheckpointInfo& stored, const CheckpointInfo& run) {
  std::vector<std::string> warnings;
  if (stored.global_batch != run.global_batch) {
    warnings.push_back(Differs("a global batch of", std::to_string(stored.global_batch),
                               std::to_string(run.global_batch)) +
                       ": it goes on at the same step and at the same place in the data, but is "
                       "another run from here on");
  }
  if (stored.seed != run.seed) {
    warnings.push_back(Differs("seed", std::to_string(stored.seed), std::to_string(run.seed)) +
                       ": the order of the samples is another one");
  }
  if (stored.data != run.data) {
    warnings.push_back(
        "the training data is not that of the checkpoint: samples of this epoch may come again or "
        "be left out");
  }
  return warnings;
}

int64_t CeilDiv(int64_t a, int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// All batches of a run whose length is given in epochs or tokens. The last batch of an epoch may be
// a smaller one.
int64_t BatchesOf(const config::Train& train, const TrainingAmount& amount) {
  const int64_t per_epoch = CeilDiv(amount.samples, amount.global_batch);
  if (train.has_epochs()) {
    return std::llround(std::ceil(train.epochs() * static_cast<double>(per_epoch)));
  }
  const int64_t samples = CeilDiv(train.tokens(), amount.targets_per_sample);
  return samples / amount.samples * per_epoch +
         CeilDiv(samples % amount.samples, amount.global_batch);
}

}  // namespace

Result<ResumePoint> PlanResume(const CheckpointInfo& stored, const CheckpointInfo& run,
                               int64_t samples) {
  ENGINE_CHECK(samples >= 1 && run.global_batch >= 1, "%lld samples, batch %lld",
               static_cast<long long>(samples), static_cast<long long>(run.global_batch));
  if (stored.global_batch < 1) {
    return Status::Error(StatusCode::kBadData,
                         "the checkpoint of step %lld does not say how far its run came in the "
                         "data, so it can be evaluated but not continued",
                         static_cast<long long>(stored.step));
  }
  if (stored.optimizer != run.optimizer) {
    return Status::Error(StatusCode::kConfig,
                         "the checkpoint has the states of optimizer '%s', and this run uses '%s': "
                         "choose '%s' to continue it",
                         stored.optimizer.c_str(), run.optimizer.c_str(), stored.optimizer.c_str());
  }
  return ResumePoint{.step = stored.step,
                     .first_batch = StepFrom(stored.position, samples, run.global_batch),
                     .warnings = Warnings(stored, run)};
}

Result<int64_t> LastStep(const config::Train& train, const TrainingAmount& amount,
                         const ResumePoint& point) {
  int64_t last = train.steps();
  const char* key = "train.steps";
  double goal = static_cast<double>(train.steps());
  if (train.has_epochs() || train.has_tokens()) {
    key = train.has_epochs() ? "train.epochs" : "train.tokens";
    goal = train.has_epochs() ? train.epochs() : static_cast<double>(train.tokens());
    last = point.step + (BatchesOf(train, amount) - point.first_batch);
  }
  if (point.step == 0 || last > point.step) return last;
  return Status::Error(StatusCode::kConfig,
                       "the run of the checkpoint is done: it has %lld steps, and %s is %.15g; "
                       "raise it to go on",
                       static_cast<long long>(point.step), key, goal);
}

SamplePosition PositionAt(int64_t step, const ResumePoint& point, int64_t samples,
                          int64_t global_batch) {
  return PositionAfter(point.first_batch + (step - point.step), samples, global_batch);
}

Status LoadCheckpoint(const OpenedCheckpoint& checkpoint, Executor& executor,
                      const RankInfo& rank) {
  const OptimizerTraits traits = executor.optimizer_traits();
  ModelMemory& memory = executor.memory();
  ENGINE_RETURN_IF_ERROR(LoadParameters(*checkpoint.file, memory));
  ENGINE_RETURN_IF_ERROR(LoadHookStates(checkpoint, executor, rank));
  if (!executor.served()) {
    return LoadStates(checkpoint, memory, traits, rank, executor.optimizer_states());
  }
  for (int32_t s = 0; rank.rank == 0 && s < traits.state_count; ++s) {
    ENGINE_ASSIGN_OR_RETURN(const std::vector<float> state,
                            ReadStates(checkpoint, memory, traits, s));
    ENGINE_RETURN_IF_ERROR(executor.SetServedState(s, state));
    ENGINE_RETURN_IF_ERROR(memory.stream()->Synchronize(kCopyTimeoutMs));
  }
  return {};
}

Status PublishResumePoint(Store& store, const ResumePoint& point) {
  return store.Set(kStoreKey, std::to_string(point.step) + " " + std::to_string(point.first_batch));
}

Result<ResumePoint> PublishedResumePoint(Store& store, int64_t timeout_ms) {
  ENGINE_ASSIGN_OR_RETURN(const std::string text, store.Get(kStoreKey, timeout_ms));
  ResumePoint point;
  if (std::sscanf(text.c_str(), "%" SCNd64 " %" SCNd64, &point.step, &point.first_batch) == 2) {
    return point;
  }
  return Status::Error(StatusCode::kInternal, "rank 0 said '%s' instead of where the run began",
                       text.c_str());
}

}  // namespace engine
