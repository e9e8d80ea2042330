// One rank's training run: its steps, and evaluations and checkpoints between them.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/exec/executor.h"
#include "core/plugin/rank_plugins.h"
#include "core/train/batch_source.h"
#include "core/train/observer.h"
#include "core/train/run_config.h"

namespace engine::train {

// Where a run stands after `step`: what a checkpoint says beside parameters and states.
struct RunState {
  int64_t step = 0;
  int64_t global_batch = 0;
  std::string data;     // DatasetInfo::digest of the training data
  int64_t samples = 0;  // of it
  int64_t batch = 0;    // BatchRequest::first_step of the next step
};

// What follows from an evaluation.
struct Judgement {
  bool keep = false;  // TrainerParts::save, kBest
  bool end = false;   // the run, as if this were its last step
};

// Why there is a checkpoint: train.checkpoint_every, an evaluation better than those before, the end.
enum class CheckpointKind { kPeriodic, kBest, kLast };

// What the program around a trainer does for it. Called on the thread of the rank.
struct TrainerParts {
  std::unique_ptr<BatchSource> data;  // not opened yet
  // The graph of the model up to its loss, for steps of at most `samples` samples on a rank.
  std::function<Result<graph::Graph>(const DatasetInfo& data, int64_t samples,
                                     const plugin::OpFactory& ops)>
      build_graph;
  // On every rank, before its first step (`now`), which none begins before all have come here: finds
  // out with the others that all would do the same, gives the executor what an earlier run has left,
  // and says where this one begins and ends. Of a rank that takes the place of a lost one only the
  // parameters that are not trained count.
  std::function<Result<RunRange>(exec::Executor& executor, const RunState& now)> begin;
  // Collective, but for ranks that go asynchronously, of which rank 0 calls it alone. Keeps the parameters,
  // the states, and what each rank keeps for itself, or copies them to do so while training goes on; after
  // kLast nothing is left to do. `together`: each rank a part, states as they are. Else rank 0 all, with
  // the states that the executor has collected; the others wait until it has come so far. kBest: beside the
  // checkpoint that a run goes on from. Null, on all ranks alike: there are no checkpoints.
  std::function<Status(const exec::Executor& executor, const RunState& now, CheckpointKind kind,
                       bool together)>
      save;
  bool saves_together = false;  // where ranks have the same parameters
  // Measures the model on what is requested of `data`, together with the other ranks of the request, all
  // of which get the same report. No targets in it: there is nothing to evaluate on.
  std::function<Result<EvaluationReport>(exec::Executor& executor, BatchSource& data,
                                         const BatchRequest& batches)>
      evaluate;
  // What follows from an evaluation: the same on all ranks, as they get the same report. Null: nothing.
  std::function<Judgement(const EvaluationReport& report)> judge;
  // Made aware of every TrainOptions::check_ranks_every steps, and before each checkpoint. Null, on all
  // ranks alike: nobody looks whether ranks have the same parameters.
  std::unique_ptr<exec::ReplicaCheck> check;
  // ExecutorOptions::keep_states, or null.
  std::function<Status(const exec::Executor& executor, uint64_t step)> keep_states;
  TrainObserver& observer;  // that of a rank other than 0 hears of no evaluation
  plugin::PluginHost::MetricSink metrics;
};

class Trainer {
 public:
  // Opens the data, loads the plugins and builds the model. `config`, `rank` and the observer are borrowed.
  static Result<std::unique_ptr<Trainer>> Create(const RunConfig& config, base::RankContext& rank,
                                                 TrainerParts parts);
  ~Trainer();

  // Trains to the end, or to the step after which somebody asked to stop; the last thing is a
  // checkpoint. Returns the step that it came to. Once.
  Result<int64_t> Run();

  int64_t steps() const { return range_.last_step; }  // of the whole run
  bool ended_early() const { return ended_early_; }   // by a judgement
  exec::Executor& executor() { return *executor_; }
  plugin::RankPlugins& plugins() { return *plugins_; }
  DatasetInfo data() const { return parts_.data->info(); }
  // After a failure of Run: as Executor::Salvage, but of the step at which it began rather than 0.
  Result<int64_t> Salvage();
  RunState StateAt(int64_t step) const;  // of this run

 private:
  Trainer(const RunConfig& config, base::RankContext& rank, TrainerParts parts)
      : config_(config), rank_(rank), parts_(std::move(parts)) {}

  Status Setup();
  Status MakeExecutor();
  Status FindFirstStep();
  BatchRequest Batches(Split split) const;
  Result<bool> TrainStep(int64_t step);
  Result<bool> Report(const exec::StepResult& result);
  Status Settle();
  Status Evaluate(int64_t step);
  Status Judge(const EvaluationReport& report);
  Status CheckRanks(int64_t step);
  Status Checkpoint(int64_t step, CheckpointKind kind);

  const RunConfig& config_;
  base::RankContext& rank_;
  const TrainerParts parts_;
  // In the order of their creation: each may use those before it.
  std::unique_ptr<plugin::RankPlugins> plugins_;
  std::unique_ptr<exec::Executor> executor_;
  exec::ReplicaCheck* check_ = nullptr;  // null: ranks need not have the same parameters
  int abort_token_ = 0;                  // of the executor's part in the end of the run
  std::unique_ptr<BatchStream> batches_;
  RunRange range_;
  int64_t first_step_ = 1;  // of this rank
  bool ended_early_ = false;
  std::deque<StepReport> unreported_;  // whose statistics have not come
};

}  // namespace engine::train
