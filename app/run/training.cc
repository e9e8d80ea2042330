#include "app/run/training.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "app/checkpoint/checkpoint.h"
#include "app/checkpoint/rank_states.h"
#include "app/checkpoint/resume.h"
#include "app/data/dataset_source.h"
#include "app/launch/agree.h"
#include "app/launch/deadlines.h"
#include "app/model/model_graph.h"
#include "app/plugins/roles.h"
#include "app/plugins/words.h"
#include "app/run/answers.h"
#include "app/run/best.h"
#include "app/run/checkpoint_writer.h"
#include "app/run/evaluation.h"
#include "app/run/generate.h"
#include "app/run/recovery.h"
#include "app/run/replica_check.h"
#include "app/run/run_length.h"
#include "app/run/serve.h"
#include "app/run/write_trace.h"
#include "app/weights/initial_weights.h"
#include "app/weights/made_ops.h"
#include "app/weights/torch_layout.h"
#include "app/weights/weight_file.h"
#include "core/plugin/loss_scale.h"
#include "engine/ext/saved_state.h"
#include "engine/ext/wire_format.h"

namespace engine::run {

checkpoint::CheckpointInfo InfoOf(const train::RunConfig& config, const RankInfo& rank,
                                  const train::RunState& now, const Best& best) {
  return {.step = now.step,
          .config = config.text,
          .optimizer = config.plugins.optimizer.entry.name,
          .seed = config.seed,
          .world_size = rank.world_size,
          .global_batch = now.global_batch,
          .data = now.data,
          .position = checkpoint::PositionOf(now.batch, now.samples, now.global_batch),
          .best = best.Save()};
}

namespace {

// The model of a new run with the weights of train.init_from, which every rank reads.
Result<graph::Graph> BuildWithWeights(const config::Config& config, base::RankContext& rank,
                                      const model::ModelRequest& request,
                                      const plugin::OpFactory& ops) {
  weights::MadeOps made(config.plugins(), ops);
  ENGINE_ASSIGN_OR_RETURN(graph::Graph graph,
                          model::BuildGraph(config.run(), rank, request, made.factory()));
  ENGINE_ASSIGN_OR_RETURN(const auto file, weights::WeightFile::Open(config.init().from));
  weights::InitialWeights found;
  const Status read = weights::ReadInitialWeights(
      *file, config.init(), weights::TorchLayouts(graph, made), &graph, &found);
  for (const std::string& note : found.notes) {
    if (rank.info.rank == 0) rank.Log(LogLevel::kInfo, "train.init_from: " + note);
  }
  ENGINE_RETURN_IF_ERROR(read);
  ENGINE_RETURN_IF_ERROR(
      launch::CheckSameOnAllRanks(rank, "weights of train.init_from", found.digest));
  return graph;
}

// Every rank reads the file, and all have it open before rank 0 may replace it by its own.
Result<train::RunStart> Restore(const std::string& path, const train::RunConfig& config,
                                base::RankContext& rank, exec::Executor& executor,
                                const train::RunState& now, Best& best, Recovery* recovery) {
  ENGINE_ASSIGN_OR_RETURN(const checkpoint::OpenedCheckpoint checkpoint,
                          checkpoint::OpenCheckpoint(path));
  if (rank.info.incarnation > 0) {
    // Trained parameters come from the servers; what is frozen is the same in every file of the
    // run.
    ENGINE_RETURN_IF_ERROR(checkpoint::LoadParameters(*checkpoint.file, executor.memory()));
    return PublishedRunStart(rank.store, config.communication.rendezvous_timeout_ms);
  }
  ENGINE_RETURN_IF_ERROR(
      launch::CheckSameOnAllRanks(rank, "checkpoint to resume from", checkpoint.digest));
  const checkpoint::CheckpointInfo run = InfoOf(config, rank.info, now, best);
  ENGINE_ASSIGN_OR_RETURN(const train::RunStart start,
                          checkpoint::PlanResume(checkpoint.info, run, now.samples));
  ENGINE_RETURN_IF_ERROR(checkpoint::LoadCheckpoint(checkpoint, executor, rank.info));
  const bool same_metric = best.Load(checkpoint.info.best);
  const bool from_memory = recovery != nullptr && recovery->from_memory();
  if (from_memory) recovery->own().GiveTensors(executor);
  if (rank.info.rank != 0 || from_memory) return start;
  if (!same_metric) {
    rank.Log(LogLevel::kWarning,
             "the best evaluation of the checkpoint, '" + checkpoint.info.best +
                 "', is by another metric than train.early_stopping.metric: the best begins anew");
  }
  for (const auto& warnings :
       {checkpoint::ResumeWarnings(checkpoint.info, run),
        checkpoint::StateWarnings(checkpoint, executor, rank.info.world_size)}) {
    for (const std::string& warning : warnings) rank.Log(LogLevel::kWarning, warning);
  }
  return start;
}

// That there is what the best of a run is chosen by.
Status CheckEvaluations(const config::Config& config, const DatasetInfo& data,
                        const graph::Graph& graph) {
  if (data.held_out_samples == 0 || config.run().train.evaluate_every < 0) {
    return Status::Error(StatusCode::kConfig,
                         "train.early_stopping and output.best_checkpoint go by evaluations, and "
                         "there are none: %s",
                         data.held_out_samples == 0 ? "the data has no held-out samples"
                                                    : "set train.evaluate_every");
  }
  std::vector<std::string> names = MetricsOf(graph, data, LossOf(config.plugins().model));
  names.insert(names.begin(), "loss");
  const std::string& metric = config.best().metric;
  if (std::ranges::find(names, metric) != names.end()) return {};
  return Status::Error(StatusCode::kConfig,
                       "train.early_stopping.metric: the evaluations give no '%s'; they give %s",
                       metric.c_str(), plugins::Join(names).c_str());
}

// What works before it is decided whether a step counts cannot skip it; and a recording skips nothing.
Status CheckLossScaling(const train::TrainOptions& train, const exec::Executor& executor) {
  const auto& hooks = executor.plugins().hooks;
  if (hooks.empty() || Query<plugin::LossScale>(*hooks[0]) == nullptr) return {};
  std::string beside = train.loss_scale != 1 ? "train.loss_scale" : "";
  if (train.record_steps) beside = "train.record_steps";
  for (size_t i = 0; i < hooks.size(); ++i) {
    if (hooks[i]->traits().stage == HookStage::kReduced) continue;
    auto* const wire = Query<WireFormat>(*hooks[i]);
    const bool keeps = wire != nullptr && wire->wire_traits().state_count > 0;
    if (!keeps && Query<SavedState>(*hooks[i]) == nullptr) continue;
    beside = "what hook '" + executor.options().hook_names[i] + "' keeps of a step that is skipped";
  }
  if (beside.empty()) return {};
  return Status::Error(StatusCode::kConfig,
                       "train.loss_scaling.mode DYNAMIC does not go with %s: drop one of the two",
                       beside.c_str());
}

// A run without a checkpoint to go on from begins with its first step, also for a rank that takes the
// place of a lost one.
Result<train::RunRange> BeginRun(const std::string& resume, const config::Config& whole,
                                 base::RankContext& rank, const DatasetInfo& data,
                                 exec::Executor& executor, const train::RunState& now, Best& best,
                                 Recovery* recovery) {
  const train::RunConfig& config = whole.run();
  const bool again = recovery != nullptr && recovery->again();
  if (whole.best().patience > 0 || !whole.output().best_checkpoint.empty()) {
    ENGINE_RETURN_IF_ERROR(CheckEvaluations(whole, data, executor.memory().graph()));
  }
  if (whole.best().patience > 0 && executor.updates().asynchronous()) {
    return Status::Error(StatusCode::kConfig,
                         "train.early_stopping ends all ranks after the same step, and these run "
                         "asynchronously: drop it, or choose another update");
  }
  ENGINE_RETURN_IF_ERROR(CheckLossScaling(config.train, executor));
  ENGINE_RETURN_IF_ERROR(launch::CheckSameOnAllRanks(
      rank, "before the first step",
      AnswersOfPlugins(config, data, executor) + checkpoint::DescribeRankStates(executor),
      StatusCode::kPlugin));
  train::RunRange range{.again = again};
  if (!resume.empty()) {
    ENGINE_ASSIGN_OR_RETURN(range.start,
                            Restore(resume, config, rank, executor, now, best, recovery));
  }
  if (rank.info.rank == 0) ENGINE_RETURN_IF_ERROR(PublishRunStart(rank.store, range.start));
  ENGINE_ASSIGN_OR_RETURN(
      range.last_step,
      LastStep(config.train.length, AmountOf(data, now.global_batch), range.start, again));
  // From here on a rank that does not come to a transfer is late. What came before takes as long as it
  // takes: plugins are set up, and files read.
  ENGINE_RETURN_IF_ERROR(launch::MeetRanks(rank, exec::ExecutorOptions().arrival_timeout_ms));
  return range;
}

// Rank 0 may have more to do than the others, who wait for it: all leave at about the same time.
Status LeaveTogether(base::RankContext& rank) {
  constexpr const char* kDone = "run/done";
  if (rank.info.rank == 0) return rank.store.Set(kDone, "");
  return rank.store.Get(kDone, launch::kFinishTimeoutMs).status();
}

// The trained model writes a text, in memory of its own: that of the executor is one for batches.
Status ShowText(const config::Config& config, base::RankContext& rank, RunObserver& observer,
                train::Trainer& trainer) {
  const train::RunConfig& run = config.run();
  const plugin::OpFactory& ops = trainer.plugins().op_factory();
  ENGINE_ASSIGN_OR_RETURN(
      graph::Graph graph,
      model::BuildGraph(run, rank, model::RequestFor(trainer.data(), 1, false), ops));
  exec::FlatLayout layout = exec::InferenceLayout(graph);
  graph::Program program = graph::ForwardProgram(graph);
  ENGINE_ASSIGN_OR_RETURN(
      std::unique_ptr<exec::ModelMemory> model,
      exec::ModelMemory::Create(std::move(graph), std::move(program), std::move(layout),
                                *trainer.plugins().set().device, ops, run.seed,
                                /*shared=*/nullptr, rank.watch));
  for (size_t i = 0; i < model->graph().parameters.size(); ++i) {
    const TensorView from = trainer.executor().memory().parameter(static_cast<int32_t>(i));
    const TensorView to = model->parameter(static_cast<int32_t>(i));
    ENGINE_RETURN_IF_ERROR(
        model->device().Copy(to.data, from.data, to.size_bytes(), model->stream()));
  }
  ENGINE_RETURN_IF_ERROR(model->RefreshCopies());
  ENGINE_ASSIGN_OR_RETURN(
      const std::string text,
      Generate(*model, "", {.count = config.output().sample_bytes, .seed = run.seed}));
  return observer.OnText(text);
}

Status Train(const config::Config& config, base::RankContext& rank, RunObserver& observer,
             train::Trainer& trainer) {
  ENGINE_ASSIGN_OR_RETURN(const int64_t step, trainer.Run());
  const config::OutputOptions& output = config.output();
  if (!output.trace.empty()) {
    ENGINE_RETURN_IF_ERROR(WriteRunTrace(
        output.trace, rank, TimelineOf(trainer.executor(), rank.info),
        {{"config", config.run().text}, {"plugins", plugins::NamesOf(config.plugins())}},
        config.run().communication.timeout_ms, trainer.executor().updates().asynchronous()));
  }
  const bool stopped = step < trainer.steps() && !trainer.ended_early();
  const bool shows = rank.info.rank == 0 && output.sample_bytes > 0 && IsText(trainer.data());
  if (shows && !stopped) ENGINE_RETURN_IF_ERROR(ShowText(config, rank, observer, trainer));
  ENGINE_RETURN_IF_ERROR(LeaveTogether(rank));
  if (!stopped) return {};
  return Status::Error(StatusCode::kInterrupted, "stopped after step %lld of %lld on request",
                       static_cast<long long>(step), static_cast<long long>(trainer.steps()));
}

}  // namespace

bool IsText(const DatasetInfo& data) {
  return !data.inputs.empty() && data.inputs[0].content == TensorContent::kBytes;
}

Result<std::unique_ptr<train::Trainer>> MakeTrainer(const config::Config& config,
                                                    base::RankContext& rank, RunObserver& observer,
                                                    plugin::PluginHost::MetricSink metrics,
                                                    const std::string& resume, Recovery* recovery) {
  const train::RunConfig& run = config.run();
  const config::OutputOptions& output = config.output();
  SetDeadlines(run.communication, rank);
  // A rank that runs something else than rank 0 would compute something else or hang: what decides what
  // is computed is compared before it is used.
  ENGINE_RETURN_IF_ERROR(launch::CheckSameOnAllRanks(rank, "plugins", run.plugins.versions));
  ENGINE_RETURN_IF_ERROR(launch::CheckSameOnAllRanks(rank, "configuration", config.compared()));
  const auto own = std::make_shared<Best>(config.best());
  const std::shared_ptr<Best> best(own, recovery == nullptr ? own.get() : &recovery->best());
  const bool saves = !output.checkpoint.empty() || !output.best_checkpoint.empty();
  const auto writer = std::make_shared<CheckpointWriter>(rank, observer);
  auto dataset = std::make_unique<data::DatasetSource>(run, rank);
  data::DatasetSource* const source = dataset.get();
  train::TrainerParts parts{
      .data = std::move(dataset),
      .build_graph = [&](const DatasetInfo& data, int64_t samples,
                         const plugin::OpFactory& ops) -> Result<graph::Graph> {
        ENGINE_RETURN_IF_ERROR(
            launch::CheckSameOnAllRanks(rank, "training data", std::string(data.digest)));
        const model::ModelRequest request = model::RequestFor(data, samples, true);
        if (config.init().from.empty() || !resume.empty()) {
          return model::BuildGraph(run, rank, request, ops);
        }
        return BuildWithWeights(config, rank, request, ops);
      },
      .begin =
          [&, resume, source, best, recovery](exec::Executor& executor,
                                              const train::RunState& now) {
            return BeginRun(resume, config, rank, source->info(), executor, now, *best, recovery);
          },
      .evaluate = [&](exec::Executor& executor, train::BatchSource& data,
                      const train::BatchRequest& batches) -> Result<train::EvaluationReport> {
        ENGINE_ASSIGN_OR_RETURN(
            const Evaluation done,
            Evaluate(executor.memory(), data, batches,
                     {.loss = LossOf(run.plugins.model), .max_samples = run.train.evaluate_samples},
                     SumByTransfers(executor, rank.info)));
        return done.report;
      },
      .judge = nullptr,
      .check = MakeReplicaCheck(run, rank),
      .observer = saves ? *writer : observer,
      .metrics = std::move(metrics)};
  if (recovery != nullptr && recovery->survives()) {
    parts.keep_states = [recovery](const exec::Executor& executor, uint64_t step) {
      return recovery->own().Keep(executor, step);
    };
  }
  if (saves) {
    parts.save = [&, source, best, writer](const exec::Executor& executor,
                                           const train::RunState& now, train::CheckpointKind kind,
                                           bool together) {
      const bool is_best = kind == train::CheckpointKind::kBest;
      const std::string& path = is_best ? output.best_checkpoint : output.checkpoint;
      checkpoint::CheckpointInfo info = InfoOf(run, rank.info, now, *best);
      info.class_names = source->class_names();
      return writer->Save(path, is_best ? 1 : output.keep_checkpoints, executor, info, kind,
                          together);
    };
    ENGINE_ASSIGN_OR_RETURN(const bool shares, SharesFile(rank, output.checkpoint));
    ENGINE_ASSIGN_OR_RETURN(const bool shares_best, SharesFile(rank, output.best_checkpoint));
    parts.saves_together = shares && shares_best;
  }
  if (config.best().patience > 0 || !output.best_checkpoint.empty()) {
    parts.judge = [&, best](const train::EvaluationReport& report) {
      train::Judgement judgement = best->Judge(report);
      // States are collected for a file alone.
      judgement.keep = judgement.keep && !output.best_checkpoint.empty();
      if (judgement.end) rank.Log(LogLevel::kInfo, best->Describe());
      return judgement;
    };
  }
  if (rank.info.rank == 0 && rank.info.servers > 0) {
    ENGINE_RETURN_IF_ERROR(DescribeRunToServers(config, rank));
  }
  return train::Trainer::Create(run, rank, std::move(parts));
}

Status RunTraining(const config::Config& config, base::RankContext& rank, RunObserver& observer,
                   train::Trainer& trainer) {
  const Status status = Train(config, rank, observer, trainer);
  if (!status.ok() && status.code() != StatusCode::kInterrupted) rank.Report(status);
  return status;
}

}  // namespace engine::run
