// One rank's training run: data, model, plugins, steps, evaluations, checkpoints.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "app/checkpoint/resume.h"
#include "app/config/config.h"
#include "core/data/batch_loader.h"
#include "core/data/open_dataset.h"
#include "core/exec/executor.h"
#include "core/train/observer.h"
#include "core/train/rank_plugins.h"

namespace engine {

class Trainer {
 public:
  // Opens the data, loads the plugins and builds the model; finds out with the other ranks that all
  // run the same configuration. `config`, `rank` and `observer` are borrowed; only rank 0's
  // observer hears of evaluations, checkpoints and texts. `resume`: a checkpoint to go on from, or
  // empty.
  static Result<std::unique_ptr<Trainer>> Create(const Config& config, RankContext& rank,
                                                 std::shared_ptr<spdlog::logger> logger,
                                                 TrainObserver& observer,
                                                 PluginHost::MetricSink metrics,
                                                 const std::string& resume);

  ~Trainer();

  // Trains to the end. kInterrupted after a request to stop: the step at hand is finished on all
  // ranks, and a checkpoint written if one is configured.
  Status Run();

  Executor& executor() { return *executor_; }

 private:
  Trainer(const Config& config, RankContext& rank, std::shared_ptr<spdlog::logger> logger,
          TrainObserver& observer)
      : config_(config), rank_(rank), logger_(std::move(logger)), observer_(observer) {}

  Status Setup(PluginHost::MetricSink metrics, const std::string& resume);
  Status MakeExecutor(const BatchOptions& batches);
  Status AgreeWithOthers();
  Status Resume(const std::string& path);
  Status FindFirstStep();
  Status PlanSteps(BatchOptions batches);
  CheckpointInfo InfoAt(int64_t step) const;
  Status ReportStart();
  Status TrainStep(int64_t step, bool* stop);
  Status Report(const StepResult& result, bool* stop);
  Status Settle();
  Status Finish();
  Status Evaluate(int64_t step);
  Status Checkpoint(int64_t step);
  Status WriteTrace();
  Status PrintSample();
  std::string PluginNames() const;
  BatchOptions MakeBatchOptions(bool shuffle) const;

  const Config& config_;
  RankContext& rank_;
  std::shared_ptr<spdlog::logger> logger_;
  TrainObserver& observer_;
  // In the order of their creation: each may use those before it.
  DatasetPair data_;
  std::unique_ptr<RankPlugins> plugins_;
  std::unique_ptr<Executor> executor_;
  int abort_token_ = 0;  // of the executor's part in the end of the run
  std::unique_ptr<BatchLoader> loader_;
  ResumePoint began_;                  // where the run began
  int64_t first_step_ = 1;             // of this rank
  int64_t steps_ = 0;                  // the last one
  std::deque<StepReport> unreported_;  // whose statistics have not come
};

// What the dataset asks of a model; `max_samples` is that of one rank.
struct ModelInputs;
ModelInputs InputsOf(const DatasetInfo& info, int64_t max_samples, bool with_loss);

// How many of the `samples` that a rank may have in a step it computes at once: those of its
// largest micro-batch.
int64_t SamplesAtOnce(const config::Train& train, int64_t samples);

// Forward passes over held-out samples, summed over the ranks of `executor` when it is not null.
struct EvaluationRequest {
  const Dataset& data;
  BatchOptions batches;
  int64_t max_samples = 0;  // 0: all
};
Result<EvaluationReport> EvaluateModel(ModelMemory& memory, Executor* executor,
                                       const EvaluationRequest& request);

}  // namespace engine
