#include "core/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace engine::train {
namespace {

exec::ExecutorOptions OptionsOf(const RunConfig& config, const RankInfo& rank) {
  const plugin::PluginSelection& chosen = config.plugins;
  return {.rank = rank,
          .seed = config.seed,
          .timeout_ms = config.communication.timeout_ms,
          .device_timeout_ms = base::kCallTimeouts * config.communication.timeout_ms,
          .shard_optimizer = config.train.shard_optimizer,
          .sparse_pull = config.train.sparse_pull,
          .micro_batches = config.train.micro_batches,
          .loss_scale = static_cast<float>(config.train.loss_scale),
          .record_steps = config.train.record_steps,
          .trace_spans = static_cast<size_t>(config.trace_spans),
          .communicator_name = chosen.communicator.entry.name,
          .scheduler_name = chosen.scheduler.entry.name,
          .optimizer_name = chosen.optimizer.entry.name,
          .hook_names = chosen.HookNames()};
}

Status Diverged(const StepReport& report, const TrainOptions& train) {
  return Status::Error(
      StatusCode::kConfig,
      "training diverged: the loss of step %lld is not finite; lower "
      "train.learning_rate.base (rate now %g)%s or add a hook that clips gradients",
      static_cast<long long>(report.step), report.learning_rate,
      train.loss_scale > 1 ? " or train.loss_scale" : "");
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::Create(const RunConfig& config, base::RankContext& rank,
                                                 TrainerParts parts) {
  std::unique_ptr<Trainer> trainer(new Trainer(config, rank, std::move(parts)));
  const Status status = trainer->Setup();
  if (status.ok()) return trainer;
  rank.Report(status);  // before what there is of it ends
  return status;
}

// Forget waits for a listener that runs, so nobody is in the executor when it goes. The batches go
// before the data that they borrow, the executor before its plugins: members in reverse order.
Trainer::~Trainer() {
  if (abort_token_ != 0) rank_.abort.Forget(abort_token_);
  const base::OpenCall open(rank_.watch, "an op", "its destructor");
  executor_.reset();
}

// TrainerParts::begin and ShareParameters are collective, so all ranks come here in this order; one
// that fails on the way aborts the run, which ends the waits of the others.
Status Trainer::Setup() {
  ENGINE_RETURN_IF_ERROR(parts_.data->Open());
  ENGINE_ASSIGN_OR_RETURN(plugins_,
                          plugin::RankPlugins::Create(config_.plugins, rank_, parts_.metrics));
  ENGINE_RETURN_IF_ERROR(MakeExecutor());
  ENGINE_RETURN_IF_ERROR(executor_->memory().InitializeParameters());
  ENGINE_ASSIGN_OR_RETURN(range_, parts_.begin(*executor_, StateAt(0)));
  ENGINE_RETURN_IF_ERROR(executor_->ShareParameters());
  const bool is_shared = plugins_->set().communicator->traits().no_op == 0;
  if (is_shared && !executor_->updates().asynchronous()) check_ = parts_.check.get();
  // A server inside of a rank is lost with it.
  if (executor_->updates().asynchronous() && rank_.info.servers > 0) rank_.AllowLosses();
  ENGINE_RETURN_IF_ERROR(FindFirstStep());
  BatchRequest batches = Batches(Split::kTrain);
  batches.first_step = range_.start.BatchAfter(first_step_ - 1);
  ENGINE_ASSIGN_OR_RETURN(batches_, parts_.data->Batches(batches));
  return {};
}

// The memory holds the samples of one micro-batch, the largest that this rank ever has.
Status Trainer::MakeExecutor() {
  // What has no name of its own: traits, extensions, memory.
  const base::OpenCall open(rank_.watch, "a plugin", "the setup of the step");
  const int64_t at_once = config_.train.SamplesAtOnce(Batches(Split::kTrain).MaxSamples());
  ENGINE_ASSIGN_OR_RETURN(graph::Graph graph,
                          parts_.build_graph(data(), at_once, plugins_->op_factory()));
  exec::ExecutorOptions options = OptionsOf(config_, rank_.info);
  options.log = rank_.log;
  if (parts_.keep_states) {
    options.keep_states = [this](uint64_t step) { return parts_.keep_states(*executor_, step); };
  }
  if (rank_.info.world_size > 1 && exec::FirstThatGathers(graph) != nullptr) {
    ENGINE_ASSIGN_OR_RETURN(options.replicas, plugins_->ReplicaCommunicator());
  }
  ENGINE_ASSIGN_OR_RETURN(
      executor_, exec::Executor::Create(std::move(graph), plugins_->set(), plugins_->op_factory(),
                                        &rank_.store, options));
  // A rank that waits for a decision of rank 0 waits in the executor, not in the communicator.
  abort_token_ = rank_.abort.Listen([this](const Status& reason) { executor_->Abort(reason); });
  for (const std::string& name : executor_->unreached_parameters()) {
    rank_.Log(LogLevel::kWarning,
              "the loss does not depend on parameter '" + name + "': it keeps its initial value");
  }
  return {};
}

// A rank that takes the place of a lost one goes on where servers have heard of that one last.
Status Trainer::FindFirstStep() {
  first_step_ = range_.start.step + 1;
  if (rank_.info.incarnation == 0) return {};
  if (!executor_->updates().served()) {
    return Status::Error(StatusCode::kConfig,
                         "a rank that was lost can only be replaced where servers keep the "
                         "parameters: choose such a communicator, or drop --restarts");
  }
  ENGINE_ASSIGN_OR_RETURN(const int64_t next, executor_->updates().served()->NextStep());
  first_step_ = std::max(first_step_, next);
  rank_.Log(LogLevel::kInfo,
            "in place of a rank that was lost: trains from step " + std::to_string(first_step_));
  return {};
}

BatchRequest Trainer::Batches(Split split) const {
  return {.split = split,
          .global_batch = config_.train.GlobalBatch(rank_.info.world_size),
          .rank = rank_.info.rank,
          .world_size = rank_.info.world_size};
}

RunState Trainer::StateAt(int64_t step) const {
  return {.step = step,
          .global_batch = config_.train.GlobalBatch(rank_.info.world_size),
          .data = std::string(data().digest),
          .samples = data().train_samples,
          .batch = range_.start.BatchAfter(step)};
}

Result<int64_t> Trainer::Run() {
  const TrainOptions& train = config_.train;
  bool stop = false;
  for (int64_t step = first_step_ - (range_.again ? 1 : 0); step <= range_.last_step; ++step) {
    if (step >= first_step_) {
      ENGINE_ASSIGN_OR_RETURN(stop, TrainStep(step));
    }
    if (step == range_.last_step) break;
    const auto due = [&](int64_t every) { return every > 0 && step > 0 && step % every == 0; };
    if (due(train.evaluate_every) && !stop) ENGINE_RETURN_IF_ERROR(Evaluate(step));
    if (stop || ended_early_) {
      ENGINE_RETURN_IF_ERROR(Checkpoint(step, CheckpointKind::kLast));
      return step;
    }
    if (!due(train.checkpoint_every)) continue;
    ENGINE_RETURN_IF_ERROR(Checkpoint(step, CheckpointKind::kPeriodic));
  }
  ENGINE_RETURN_IF_ERROR(Settle());
  exec::UpdateStrategy& updates = executor_->updates();
  if (updates.asynchronous()) {
    ENGINE_RETURN_IF_ERROR(updates.served()->Meet(executor_->transfers()));
  }
  if (train.evaluate_every >= 0) ENGINE_RETURN_IF_ERROR(Evaluate(range_.last_step));
  ENGINE_RETURN_IF_ERROR(Checkpoint(range_.last_step, CheckpointKind::kLast));
  return range_.last_step;
}

// Whether somebody has asked to stop: the same on all ranks, because it travels with the
// statistics of a step.
Result<bool> Trainer::TrainStep(int64_t step) {
  ENGINE_ASSIGN_OR_RETURN(const Batch* batch, batches_->Next());
  const double rate =
      config_.train.learning_rate(step, range_.last_step, batches_->steps_per_epoch());
  // By the statistics of the next step, so that it costs no flush.
  const int64_t every = config_.train.check_ranks_every;
  const bool checks = every > 0 && step > first_step_ && (step - 1) % every == 0 &&
                      executor_->memory().accelerator() == nullptr;
  const exec::StepInput input{.input = batch->input,
                              .target = batch->target,
                              .others = batch->others,
                              .samples = batch->samples,
                              .first_sample = batch->first_sample,
                              .all_samples = batch->global_samples,
                              .step = static_cast<uint64_t>(step),
                              .learning_rate = static_cast<float>(rate),
                              .stop = rank_.stop_requested.load() != 0,
                              .check = checks ? check_ : nullptr};
  unreported_.push_back({.step = step,
                         .steps = range_.last_step,
                         .epoch = static_cast<double>(batch->epoch) +
                                  static_cast<double>(batch->step_in_epoch + 1) /
                                      static_cast<double>(batches_->steps_per_epoch()),
                         .learning_rate = rate,
                         .samples = batch->global_samples});
  auto result = executor_->Step(input);
  if (!result.ok()) return result.status().WithContext("step %lld", static_cast<long long>(step));
  return Report(*result);
}

Result<int64_t> Trainer::Salvage() {
  ENGINE_ASSIGN_OR_RETURN(const int64_t step, executor_->Salvage());
  return step == 0 ? range_.start.step : step;
}

// Of the step whose statistics have come: on an accelerator not the one that was run last.
Result<bool> Trainer::Report(const exec::StepResult& result) {
  if (result.step == 0) return false;
  ENGINE_CHECK(
      !unreported_.empty() && unreported_.front().step == static_cast<int64_t>(result.step),
      "statistics of step %llu", static_cast<unsigned long long>(result.step));
  StepReport report = unreported_.front();
  unreported_.pop_front();
  const exec::StepStatistics& statistics = result.statistics;
  if (check_ != nullptr) ENGINE_RETURN_IF_ERROR(check_->Conclude(statistics.marks));
  if (!std::isfinite(statistics.loss_sum)) return Diverged(report, config_.train);
  const double count = statistics.count > 0 ? statistics.count : 1;
  report.loss = statistics.loss_sum / count;
  report.accuracy = statistics.correct / count;
  report.seconds = result.seconds;
  report.communication_seconds = result.waited_seconds;
  ENGINE_RETURN_IF_ERROR(parts_.observer.OnStep(report));
  return statistics.stop > 0;
}

// All steps are done and reported.
Status Trainer::Settle() {
  ENGINE_RETURN_IF_ERROR(executor_->Flush());
  ENGINE_ASSIGN_OR_RETURN(const exec::StepResult rest, executor_->Remaining());
  // A request to stop comes too late, or what it wants happens anyway.
  return Report(rest).status();
}

// Ranks that run asynchronously have no moment in common: rank 0 evaluates alone, with the
// parameters that it has.
Status Trainer::Evaluate(int64_t step) {
  ENGINE_RETURN_IF_ERROR(Settle());
  ENGINE_RETURN_IF_ERROR(executor_->ShareBuffers());
  BatchRequest batches = Batches(Split::kHeldOut);
  const bool alone = executor_->updates().asynchronous();
  if (alone) {
    if (rank_.info.rank != 0) return {};
    batches.global_batch = batches.MaxSamples();
    batches.world_size = 1;
  }
  ENGINE_ASSIGN_OR_RETURN(EvaluationReport report,
                          parts_.evaluate(*executor_, *parts_.data, batches));
  report.step = step;
  const bool reports = rank_.info.rank == 0 && report.targets > 0;
  if (reports) ENGINE_RETURN_IF_ERROR(parts_.observer.OnEvaluation(report));
  return parts_.judge && report.targets > 0 ? Judge(report) : Status();
}

// The same on all ranks.
Status Trainer::Judge(const EvaluationReport& report) {
  const Judgement judgement = parts_.judge(report);
  // Of ranks that run asynchronously rank 0 is the only one here.
  ended_early_ = judgement.end && !executor_->updates().asynchronous();
  return judgement.keep ? Checkpoint(report.step, CheckpointKind::kBest) : Status();
}

// Where all updates are done, and no next step tells it.
Status Trainer::CheckRanks(int64_t step) {
  if (check_ == nullptr) return {};
  float marks[std::size(exec::StepStatistics().marks)];
  ENGINE_RETURN_IF_ERROR(
      check_->Take(executor_->memory(), executor_->updates(), static_cast<uint64_t>(step), marks));
  ENGINE_RETURN_IF_ERROR(executor_->AllReduce(marks).WithContext("comparing ranks"));
  return check_->Conclude(marks);
}

// Collective, but for ranks that run asynchronously. What servers keep, and where ranks do not write
// together what is sharded, comes to rank 0.
Status Trainer::Checkpoint(int64_t step, CheckpointKind kind) {
  ENGINE_RETURN_IF_ERROR(Settle());
  if (!parts_.save) return {};
  ENGINE_RETURN_IF_ERROR(executor_->ShareBuffers());
  exec::UpdateStrategy& updates = executor_->updates();
  const bool first = rank_.info.rank == 0;
  if (!first && updates.asynchronous()) return {};
  ENGINE_RETURN_IF_ERROR(CheckRanks(step));
  const bool together = parts_.saves_together && updates.served() == nullptr &&
                        plugins_->set().communicator->traits().no_op == 0;
  if (!together) ENGINE_RETURN_IF_ERROR(executor_->CollectStates());
  if (!first) updates.DropStates();
  ENGINE_RETURN_IF_ERROR(parts_.save(*executor_, StateAt(step), kind, together));
  updates.DropStates();
  return {};
}

}  // namespace engine::train
