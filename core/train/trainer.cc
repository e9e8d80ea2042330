#include "core/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "app/checkpoint/checkpoint.h"
#include "app/checkpoint/retention.h"
#include "app/launch/agree.h"
#include "app/run/generate.h"
#include "app/run/serve.h"
#include "app/run/write_trace.h"
#include "core/models/model.h"
#include "core/train/learning_rate.h"

namespace engine {
namespace {

constexpr int64_t kCheckpointTimeoutMs = 30 * 60 * 1000;
// For ranks that go at their own pace to finish: a lost one is found by heartbeats, not by this.
constexpr int64_t kFinishTimeoutMs = 24 * 60 * 60 * 1000;

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::Create(const Config& config, RankContext& rank,
                                                 std::shared_ptr<spdlog::logger> logger,
                                                 TrainObserver& observer,
                                                 PluginHost::MetricSink metrics,
                                                 const std::string& resume) {
  std::unique_ptr<Trainer> trainer(new Trainer(config, rank, std::move(logger), observer));
  ENGINE_RETURN_IF_ERROR(trainer->Setup(std::move(metrics), resume));
  return trainer;
}

Status Trainer::Setup(PluginHost::MetricSink metrics, const std::string& resume) {
  ENGINE_RETURN_IF_ERROR(AgreeWithOthers());
  const config::Config& proto = config_.proto();
  ENGINE_ASSIGN_OR_RETURN(data_, OpenDataset(proto.data(), proto.seed()));
  ENGINE_RETURN_IF_ERROR(CheckSameOnAllRanks(rank_, "training data", data_.train->info().digest,
                                             proto.communication().rendezvous_timeout_ms()));
  const BatchOptions batches = MakeBatchOptions(proto.data().shuffle());
  ENGINE_ASSIGN_OR_RETURN(plugins_,
                          RankPlugins::Create(config_, rank_, logger_, std::move(metrics)));
  ENGINE_RETURN_IF_ERROR(MakeExecutor(batches));
  ENGINE_RETURN_IF_ERROR(executor_->memory().InitializeParameters());
  if (!resume.empty()) ENGINE_RETURN_IF_ERROR(Resume(resume));
  ENGINE_RETURN_IF_ERROR(executor_->ShareParameters());
  // A server inside of a rank is lost with it.
  if (executor_->own_pace() && rank_.info.servers > 0) rank_.AllowLosses();
  return PlanSteps(batches);
}

Trainer::~Trainer() {
  if (abort_token_ != 0) rank_.abort.Forget(abort_token_);
}

Status Trainer::MakeExecutor(const BatchOptions& batches) {
  const config::Config& proto = config_.proto();
  const int64_t at_once = SamplesAtOnce(proto.train(), MaxBatchOfRank(batches));
  const ModelInputs inputs = InputsOf(data_.train->info(), at_once, true);
  ENGINE_ASSIGN_OR_RETURN(
      Graph graph, BuildModel(proto.model(), config_.layers(), inputs, plugins_->op_factory()));
  ENGINE_RETURN_IF_ERROR(ScaleParameters(proto.train().group(), &graph));
  if (proto.train().sparse_pull()) {
    ENGINE_RETURN_IF_ERROR(CheckHasRowTables(graph, proto.model()));
  }
  const PluginSelection& chosen = config_.plugins();
  ExecutorOptions options{.rank = rank_.info,
                          .seed = proto.seed(),
                          .timeout_ms = proto.communication().timeout_ms(),
                          .shard_optimizer = proto.train().shard_optimizer(),
                          .sparse_pull = proto.train().sparse_pull(),
                          .micro_batches = proto.train().micro_batches(),
                          .loss_scale = static_cast<float>(proto.train().loss_scale()),
                          .record_steps = proto.train().record_steps(),
                          .trace_spans = static_cast<size_t>(proto.output().trace_spans()),
                          .communicator_name = chosen.communicator.entry.name,
                          .scheduler_name = chosen.scheduler.entry.name,
                          .optimizer_name = chosen.optimizer.entry.name};
  for (const PluginChoice& hook : chosen.hooks) options.hook_names.push_back(hook.entry.name);
  const bool gathers = rank_.info.world_size > 1 && UsesReplicas(graph);
  if (rank_.info.rank == 0 && rank_.info.servers > 0) {
    const bool ordered = plugins_->set().communicator->traits().ordered != 0;
    ENGINE_RETURN_IF_ERROR(TellServersOfReplicas(rank_, gathers && ordered));
  }
  if (gathers) {
    ENGINE_ASSIGN_OR_RETURN(options.replicas, plugins_->ReplicaCommunicator());
  }
  ENGINE_ASSIGN_OR_RETURN(
      executor_, Executor::Create(std::move(graph), plugins_->set(), plugins_->op_factory(),
                                  &rank_.store, options));
  // A rank that waits for a decision of rank 0 waits in the executor, not in the communicator.
  abort_token_ = rank_.abort.Listen([this](const Status& reason) { executor_->Abort(reason); });
  for (const std::string& name : executor_->unreached_parameters()) {
    logger_->warn("the loss does not depend on parameter '{}': it keeps its initial value", name);
  }
  return CheckSameOnAllRanks(rank_, "plan of the step", std::to_string(executor_->tasks().digest),
                             proto.communication().rendezvous_timeout_ms());
}

// Every rank reads the file, and all have it open before rank 0 may replace it by its own.
Status Trainer::Resume(const std::string& path) {
  ENGINE_ASSIGN_OR_RETURN(const OpenedCheckpoint checkpoint, OpenCheckpoint(path));
  // Trained parameters come from the servers; what is frozen is the same in every file of the run.
  if (rank_.info.incarnation > 0) return LoadParameters(*checkpoint.file, executor_->memory());
  ENGINE_RETURN_IF_ERROR(
      CheckSameOnAllRanks(rank_, "checkpoint to resume from", checkpoint.digest,
                          config_.proto().communication().rendezvous_timeout_ms()));
  ENGINE_ASSIGN_OR_RETURN(began_, PlanResume(checkpoint.info, InfoAt(0), data_.train->info().size));
  ENGINE_RETURN_IF_ERROR(LoadCheckpoint(checkpoint, *executor_, rank_.info));
  if (rank_.info.rank != 0) return {};
  for (const std::string& warning : began_.warnings) logger_->warn("{}", warning);
  for (const std::string& warning :
       HookStateWarnings(checkpoint, *executor_, rank_.info.world_size)) {
    logger_->warn("{}", warning);
  }
  for (const std::string& name :
       UnusedStates(*checkpoint.file, executor_->memory(), executor_->optimizer_traits())) {
    logger_->warn("this run has no use for '{}' of the checkpoint", name);
  }
  return {};
}

// A rank that takes the place of a lost one goes on where servers have heard of that one last.
Status Trainer::FindFirstStep() {
  const int64_t timeout_ms = config_.proto().communication().rendezvous_timeout_ms();
  if (rank_.info.incarnation == 0) {
    first_step_ = began_.step + 1;
    return rank_.info.rank == 0 ? PublishResumePoint(rank_.store, began_) : Status();
  }
  if (!executor_->served()) {
    return Status::Error(StatusCode::kConfig,
                         "a rank that was lost can only be replaced where servers keep the "
                         "parameters: choose such a communicator, or drop --restarts");
  }
  ENGINE_ASSIGN_OR_RETURN(began_, PublishedResumePoint(rank_.store, timeout_ms));
  ENGINE_ASSIGN_OR_RETURN(const int64_t next, executor_->NextStep());
  first_step_ = std::max(began_.step + 1, next);
  logger_->info("goes on with step {} in place of a rank that was lost", first_step_);
  return {};
}

// A rank that runs something else than rank 0 would compute nonsense or hang.
Status Trainer::AgreeWithOthers() {
  if (rank_.info.rank == 0 && rank_.info.servers > 0) {
    ENGINE_RETURN_IF_ERROR(DescribeRunToServers(config_, rank_));
  }
  const int64_t timeout_ms = config_.proto().communication().rendezvous_timeout_ms();
  ENGINE_RETURN_IF_ERROR(
      CheckSameOnAllRanks(rank_, "plugins", PluginVersions(config_.plugins()), timeout_ms));
  return CheckSameOnAllRanks(rank_, "configuration", config_.Print(false), timeout_ms);
}

BatchOptions Trainer::MakeBatchOptions(bool shuffle) const {
  const config::Train& train = config_.proto().train();
  const int64_t per_rank = train.batch_per_rank() * rank_.info.world_size;
  return {.seed = config_.proto().seed(),
          .global_batch = train.has_global_batch() ? train.global_batch() : per_rank,
          .rank = rank_.info.rank,
          .world_size = rank_.info.world_size,
          .shuffle = shuffle,
          .prefetch = config_.proto().data().prefetch()};
}

Status Trainer::PlanSteps(BatchOptions batches) {
  ENGINE_RETURN_IF_ERROR(FindFirstStep());
  batches.first_step = began_.first_batch + first_step_ - (began_.step + 1);
  ENGINE_ASSIGN_OR_RETURN(loader_, BatchLoader::Create(*data_.train, batches));
  const DatasetInfo& data = data_.train->info();
  const TrainingAmount amount = {.samples = data.size,
                                 .targets_per_sample = data.target_shape.Count(),
                                 .global_batch = batches.global_batch};
  ENGINE_ASSIGN_OR_RETURN(steps_, LastStep(config_.proto().train(), amount, began_));
  const config::Output& output = config_.proto().output();
  return rank_.info.rank == 0 ? CheckCanKeep(output.checkpoint(), output.keep_checkpoints())
                              : Status();
}

std::string Trainer::PluginNames() const {
  std::string names;
  for (const PluginChoice* choice : ChosenPlugins(config_.plugins())) {
    names += (names.empty() ? "" : " ") + choice->entry.name;
  }
  return names;
}

Status Trainer::ReportStart() {
  StartReport report{.ranks = rank_.info.world_size,
                     .data = data_.train->info().name,
                     .samples = data_.train->info().size,
                     .held_out = data_.eval->info().size,
                     .steps = steps_,
                     .global_batch = MakeBatchOptions(true).global_batch};
  for (const Parameter& parameter : executor_->memory().graph().parameters) {
    if (!parameter.buffer) report.parameters += parameter.shape.Count();
  }
  report.plugins = PluginNames();
  return observer_.OnStart(report);
}

Status Trainer::Run() {
  const config::Train& train = config_.proto().train();
  ENGINE_RETURN_IF_ERROR(ReportStart());
  for (int64_t step = first_step_; step <= steps_; ++step) {
    bool stop = false;
    ENGINE_RETURN_IF_ERROR(TrainStep(step, &stop));
    if (step == steps_) break;
    if (stop) {
      ENGINE_RETURN_IF_ERROR(Settle());
      ENGINE_RETURN_IF_ERROR(Checkpoint(step));
      ENGINE_RETURN_IF_ERROR(WriteTrace());
      return Status::Error(StatusCode::kInterrupted, "stopped after step %lld of %lld on request",
                           static_cast<long long>(step), static_cast<long long>(steps_));
    }
    const auto due = [&](int64_t every) { return every > 0 && step % every == 0; };
    if (due(train.evaluate_every())) ENGINE_RETURN_IF_ERROR(Evaluate(step));
    if (due(train.checkpoint_every())) ENGINE_RETURN_IF_ERROR(Checkpoint(step));
  }
  return Finish();
}

Status Trainer::Finish() {
  ENGINE_RETURN_IF_ERROR(Settle());
  if (executor_->own_pace()) ENGINE_RETURN_IF_ERROR(executor_->Meet(kFinishTimeoutMs));
  if (config_.proto().train().evaluate_every() >= 0) ENGINE_RETURN_IF_ERROR(Evaluate(steps_));
  ENGINE_RETURN_IF_ERROR(Checkpoint(steps_));
  ENGINE_RETURN_IF_ERROR(WriteTrace());
  return PrintSample();
}

Status Trainer::TrainStep(int64_t step, bool* stop) {
  ENGINE_ASSIGN_OR_RETURN(const Batch* batch, loader_->Next());
  const double rate = LearningRateAt(config_.proto().train().learning_rate(), step, steps_);
  const StepInput input{.input = batch->input,
                        .target = batch->target,
                        .samples = batch->samples,
                        .first_sample = batch->first_sample,
                        .all_samples = batch->global_samples,
                        .step = static_cast<uint64_t>(step),
                        .learning_rate = static_cast<float>(rate),
                        .stop = rank_.stop_requested.load() != 0};
  unreported_.push_back({.step = step,
                         .steps = steps_,
                         .epoch = static_cast<double>(batch->epoch) +
                                  static_cast<double>(batch->step_in_epoch + 1) /
                                      static_cast<double>(loader_->steps_per_epoch()),
                         .learning_rate = rate,
                         .samples = batch->global_samples});
  auto result = executor_->Step(input);
  if (!result.ok()) return result.status().WithContext("step %lld", static_cast<long long>(step));
  return Report(*result, stop);
}

// Of the step whose statistics have come: on an accelerator not the one that was run last.
Status Trainer::Report(const StepResult& result, bool* stop) {
  if (result.step == 0) return {};
  ENGINE_CHECK(
      !unreported_.empty() && unreported_.front().step == static_cast<int64_t>(result.step),
      "statistics of step %llu", static_cast<unsigned long long>(result.step));
  StepReport report = unreported_.front();
  unreported_.pop_front();
  const StepStatistics& statistics = result.statistics;
  *stop = statistics.stop > 0;
  const double count = std::max(statistics.count, 1.0f);
  if (!std::isfinite(statistics.loss_sum)) {
    const config::Train& train = config_.proto().train();
    return Status::Error(StatusCode::kConfig,
                         "training diverged: the loss of step %lld is not finite; lower "
                         "train.learning_rate.base (now %g)%s or add the hook clip_norm",
                         static_cast<long long>(report.step), train.learning_rate().base(),
                         train.loss_scale() > 1 ? " or train.loss_scale" : "");
  }
  report.loss = statistics.loss_sum / count;
  report.accuracy = statistics.correct / count;
  report.seconds = result.seconds;
  report.communication_seconds = result.waited_seconds;
  return observer_.OnStep(report);
}

Status Trainer::Settle() {
  ENGINE_RETURN_IF_ERROR(executor_->Flush());
  ENGINE_ASSIGN_OR_RETURN(const StepResult rest, executor_->Remaining());
  bool stop = false;  // it is too late, or it happens anyway
  return Report(rest, &stop);
}

Status Trainer::Evaluate(int64_t step) {
  ENGINE_RETURN_IF_ERROR(Settle());
  ENGINE_RETURN_IF_ERROR(executor_->ShareBuffers());
  EvaluationRequest request{.data = *data_.eval,
                            .batches = MakeBatchOptions(false),
                            .max_samples = config_.proto().train().evaluate_samples()};
  const bool alone = executor_->own_pace();
  if (alone) {
    if (rank_.info.rank != 0) return {};
    request.batches.global_batch = MaxBatchOfRank(request.batches);
    request.batches.world_size = 1;
  }
  auto report = EvaluateModel(executor_->memory(), alone ? nullptr : executor_.get(), request);
  if (!report.ok()) return report.status();
  report->step = step;
  return rank_.info.rank == 0 && report->targets > 0 ? observer_.OnEvaluation(*report) : Status();
}

CheckpointInfo Trainer::InfoAt(int64_t step) const {
  const int64_t global_batch = MakeBatchOptions(true).global_batch;
  const DatasetInfo& data = data_.train->info();
  return {.step = step,
          .config = config_.Print(false),
          .optimizer = config_.plugins().optimizer.entry.name,
          .seed = config_.proto().seed(),
          .world_size = rank_.info.world_size,
          .global_batch = global_batch,
          .data = data.digest,
          .position = PositionAt(step, began_, data.size, global_batch)};
}

Status Trainer::Checkpoint(int64_t step) {
  const std::string& path = config_.proto().output().checkpoint();
  if (path.empty()) return {};
  ENGINE_RETURN_IF_ERROR(Settle());
  ENGINE_RETURN_IF_ERROR(executor_->ShareBuffers());
  const bool first = rank_.info.rank == 0;
  if (!first && executor_->own_pace()) return {};
  ENGINE_RETURN_IF_ERROR(executor_->CollectOptimizerStates());
  ENGINE_RETURN_IF_ERROR(executor_->CollectWireStates());
  // The others wait here, because a slow disk may take longer than a transfer is allowed to.
  const std::string written = "checkpoint/" + std::to_string(step);
  if (!first) {
    executor_->DropCollectedStates();
    auto waited = rank_.store.Get(written, kCheckpointTimeoutMs);
    return waited.ok() ? Status() : waited.status().WithContext("checkpoint of rank 0");
  }
  ENGINE_RETURN_IF_ERROR(WriteCheckpoint(path, *executor_, InfoAt(step)));
  ENGINE_RETURN_IF_ERROR(KeepNewest(path, step, config_.proto().output().keep_checkpoints()));
  executor_->DropCollectedStates();
  ENGINE_RETURN_IF_ERROR(rank_.store.Set(written, ""));
  return observer_.OnCheckpoint(step, path);
}

Status Trainer::WriteTrace() {
  const std::string& path = config_.proto().output().trace();
  if (path.empty()) return {};
  return WriteRunTrace(path, rank_, executor_->Timeline(),
                       {{"config", config_.Print(false)}, {"plugins", PluginNames()}},
                       config_.proto().communication().timeout_ms(), executor_->own_pace());
}

Status Trainer::PrintSample() {
  const config::Config& proto = config_.proto();
  if (proto.output().sample_bytes() <= 0 || !proto.data().has_text()) return {};
  if (rank_.info.rank != 0) return {};
  const ModelInputs inputs = InputsOf(data_.train->info(), 1, false);
  ENGINE_ASSIGN_OR_RETURN(
      Graph graph, BuildModel(proto.model(), config_.layers(), inputs, plugins_->op_factory()));
  FlatLayout layout = InferenceLayout(graph);
  Program program = ForwardProgram(graph);
  ENGINE_ASSIGN_OR_RETURN(
      std::unique_ptr<ModelMemory> model,
      ModelMemory::Create(std::move(graph), std::move(program), std::move(layout),
                          *plugins_->set().device, plugins_->op_factory(), proto.seed()));
  for (size_t i = 0; i < model->graph().parameters.size(); ++i) {
    const TensorView from = executor_->memory().parameter(static_cast<int32_t>(i));
    const TensorView to = model->parameter(static_cast<int32_t>(i));
    ENGINE_RETURN_IF_ERROR(
        model->device().Copy(to.data, from.data, to.size_bytes(), model->stream()));
  }
  ENGINE_RETURN_IF_ERROR(model->RefreshCopies());
  ENGINE_ASSIGN_OR_RETURN(
      const std::string text,
      Generate(*model, "", {.bytes = proto.output().sample_bytes(), .seed = proto.seed()}));
  return observer_.OnText("", text);
}

}  // namespace engine
