#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "app/checkpoint/checkpoint.h"
#include "app/cli/commands.h"
#include "app/data/dataset_source.h"
#include "app/launch/log.h"
#include "app/model/model_graph.h"
#include "app/run/generate.h"
#include "app/run/serve.h"
#include "app/run/training.h"
#include "core/train/evaluate.h"

namespace engine::cli {
namespace {

// A trained model in memory, in a world of one.
struct TrainedModel {
  std::unique_ptr<plugin::RankPlugins> plugins;
  std::unique_ptr<exec::ModelMemory> memory;
};

Result<TrainedModel> LoadModel(const checkpoint::OpenedCheckpoint& checkpoint,
                               const config::Config& config, const model::ModelRequest& request,
                               base::RankContext& rank) {
  TrainedModel model;
  rank.log = launch::MemberLog(rank.info);
  run::SetDeadlines(config.run().communication, rank);
  ENGINE_ASSIGN_OR_RETURN(model.plugins, plugin::RankPlugins::Create(config.plugins(), rank));
  const plugin::OpFactory& factory = model.plugins->op_factory();
  ENGINE_ASSIGN_OR_RETURN(graph::Graph graph,
                          model::BuildGraph(config.run(), rank, request, factory));
  exec::FlatLayout layout = exec::InferenceLayout(graph);
  graph::Program program = graph::ForwardProgram(graph);
  ENGINE_ASSIGN_OR_RETURN(
      model.memory,
      exec::ModelMemory::Create(std::move(graph), std::move(program), std::move(layout),
                                *model.plugins->set().device, factory, config.run().seed));
  ENGINE_RETURN_IF_ERROR(checkpoint::LoadParameters(*checkpoint.file, *model.memory));
  return model;
}

using Body = std::function<Status(const checkpoint::OpenedCheckpoint&, const config::Config&,
                                  base::RankContext&)>;

int WithCheckpoint(const CheckpointFlags& flags, const command::Environment& environment,
                   const Body& body) {
  const auto checkpoint = checkpoint::OpenCheckpoint(flags.file);
  if (!checkpoint.ok()) return command::ReportError(checkpoint.status());
  // One process needs no communication, whatever the run used.
  const auto config = command::LoadConfig({.text = checkpoint->info.config,
                                           .origin = "configuration in " + flags.file,
                                           .is_data = true,
                                           .overrides = flags.overrides},
                                          flags.plugin, environment);
  if (!config.ok()) return command::ReportError(config.status());
  const launch::LaunchPlan plan{
      .mode = launch::LaunchPlan::Mode::kThreads, .info = {}, .source = "one process"};
  const launch::LaunchOutcome outcome = launch::Launch(plan, {}, [&](base::RankContext& rank) {
    command::EndAtFirstSignal();
    return body(*checkpoint, *config, rank);
  });
  return command::ReportOutcome(outcome, /*alone=*/true);
}

}  // namespace

int SampleCommand(const CheckpointFlags& flags, const command::Environment& environment) {
  return WithCheckpoint(
      flags, environment,
      [&](const checkpoint::OpenedCheckpoint& checkpoint, const config::Config& config,
          base::RankContext& rank) -> Status {
        // What a sample is follows from the configuration alone: the text itself need not be there.
        data::DatasetSource data(config.run(), rank);
        ENGINE_RETURN_IF_ERROR(data.Make());
        if (!run::IsText(data.info())) {
          return Status::Error(StatusCode::kConfig,
                               "%s was not trained on text, so it cannot continue one",
                               flags.file.c_str());
        }
        ENGINE_ASSIGN_OR_RETURN(
            const TrainedModel model,
            LoadModel(checkpoint, config, model::RequestFor(data.info(), 1, false), rank));
        const run::GenerateOptions options{.bytes = flags.bytes,
                                           .temperature = flags.temperature,
                                           .top_k = flags.top_k,
                                           .seed = flags.seed};
        ENGINE_ASSIGN_OR_RETURN(const std::string text,
                                run::Generate(*model.memory, flags.prompt, options));
        std::printf("%s%s\n", flags.prompt.c_str(), text.c_str());
        return {};
      });
}

int EvalCommand(const CheckpointFlags& flags, const command::Environment& environment) {
  return WithCheckpoint(
      flags, environment,
      [&](const checkpoint::OpenedCheckpoint& checkpoint, const config::Config& config,
          base::RankContext& rank) -> Status {
        const train::RunConfig& run = config.run();
        data::DatasetSource data(run, rank);
        ENGINE_RETURN_IF_ERROR(data.Open());
        const int64_t batch = run.train.GlobalBatch(1);
        const int64_t at_once = run.train.SamplesAtOnce(batch);
        ENGINE_ASSIGN_OR_RETURN(
            const TrainedModel model,
            LoadModel(checkpoint, config, model::RequestFor(data.info(), at_once, true), rank));
        ENGINE_ASSIGN_OR_RETURN(
            const train::EvaluationReport report,
            train::EvaluateModel(*model.memory, nullptr, data,
                                 {.split = Split::kHeldOut, .global_batch = batch},
                                 run.train.evaluate_samples));
        std::printf("step %lld  held-out loss %.4f  accuracy %.2f %%  (%lld targets)\n",
                    static_cast<long long>(checkpoint.info.step), report.loss,
                    100 * report.accuracy, static_cast<long long>(report.targets));
        return {};
      });
}

}  // namespace engine::cli
