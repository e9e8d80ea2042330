#include <cstdio>

#include "app/checkpoint/checkpoint.h"
#include "app/cli/commands.h"
#include "app/launch/log.h"
#include "app/run/generate.h"
#include "app/run/training.h"

namespace engine {
namespace {

// A trained model in memory, in a world of one.
struct TrainedModel {
  std::unique_ptr<RankPlugins> plugins;
  std::unique_ptr<ModelMemory> memory;
};

Result<TrainedModel> LoadModel(const OpenedCheckpoint& checkpoint, const Config& config,
                               const ModelRequest& request, RankContext& rank) {
  TrainedModel model;
  rank.log = MemberLog(rank.info);
  ENGINE_ASSIGN_OR_RETURN(model.plugins, RankPlugins::Create(config.plugins(), rank));
  const OpFactory& factory = model.plugins->op_factory();
  ENGINE_ASSIGN_OR_RETURN(Graph graph, BuildGraph(config.run(), rank, request, factory));
  FlatLayout layout = InferenceLayout(graph);
  Program program = ForwardProgram(graph);
  ENGINE_ASSIGN_OR_RETURN(
      model.memory, ModelMemory::Create(std::move(graph), std::move(program), std::move(layout),
                                        *model.plugins->set().device, factory, config.run().seed));
  ENGINE_RETURN_IF_ERROR(LoadParameters(*checkpoint.file, *model.memory));
  return model;
}

using Body = std::function<Status(const OpenedCheckpoint&, const Config&, RankContext&)>;

int WithCheckpoint(const CheckpointFlags& flags, const Environment& environment, const Body& body) {
  const auto checkpoint = OpenCheckpoint(flags.file);
  if (!checkpoint.ok()) return ReportError(checkpoint.status());
  // One process needs no communication, whatever the run used.
  const ConfigRequest request{.text = checkpoint->info.config,
                              .origin = "configuration in " + flags.file,
                              .overrides = flags.overrides,
                              .plugin_folders = PluginFolders(flags.plugin, environment)};
  const auto config = Config::Load(request);
  if (!config.ok()) return ReportError(config.status());
  const LaunchPlan plan{.mode = LaunchPlan::Mode::kThreads, .info = {}, .source = "one process"};
  const LaunchOutcome outcome =
      Launch(plan, {}, [&](RankContext& rank) { return body(*checkpoint, *config, rank); });
  return outcome.status.ok() ? 0 : (ReportError(outcome.status), outcome.exit_code);
}

}  // namespace

int SampleCommand(const CheckpointFlags& flags, const Environment& environment) {
  return WithCheckpoint(
      flags, environment,
      [&](const OpenedCheckpoint& checkpoint, const Config& config, RankContext& rank) -> Status {
        // What a sample is follows from the configuration alone: the text itself need not be there.
        ENGINE_ASSIGN_OR_RETURN(const HostedDataset data, MakeDataset(config.run(), rank));
        if (!IsText(data.info())) {
          return Status::Error(StatusCode::kConfig,
                               "%s was not trained on text, so it cannot continue one",
                               flags.file.c_str());
        }
        ENGINE_ASSIGN_OR_RETURN(
            const TrainedModel model,
            LoadModel(checkpoint, config, RequestFor(data.info(), 1, false), rank));
        const GenerateOptions options{.bytes = flags.bytes,
                                      .temperature = flags.temperature,
                                      .top_k = flags.top_k,
                                      .seed = flags.seed};
        ENGINE_ASSIGN_OR_RETURN(const std::string text,
                                Generate(*model.memory, flags.prompt, options));
        std::printf("%s%s\n", flags.prompt.c_str(), text.c_str());
        return {};
      });
}

int EvalCommand(const CheckpointFlags& flags, const Environment& environment) {
  return WithCheckpoint(
      flags, environment,
      [&](const OpenedCheckpoint& checkpoint, const Config& config, RankContext& rank) -> Status {
        const RunConfig& run = config.run();
        ENGINE_ASSIGN_OR_RETURN(const HostedDataset data, OpenDataset(run, rank));
        const int64_t batch = run.train.GlobalBatch(1);
        const int64_t at_once = run.train.SamplesAtOnce(batch);
        ENGINE_ASSIGN_OR_RETURN(
            const TrainedModel model,
            LoadModel(checkpoint, config, RequestFor(data.info(), at_once, true), rank));
        const EvaluationRequest request{
            .data = *data,
            .batches = {.split = Split::kHeldOut,
                        .seed = run.seed,
                        .global_batch = batch,
                        .shuffle = false},
            .max_samples = run.train.evaluate_samples};
        ENGINE_ASSIGN_OR_RETURN(const EvaluationReport report,
                                EvaluateModel(*model.memory, nullptr, request));
        std::printf("step %lld  held-out loss %.4f  accuracy %.2f %%  (%lld targets)\n",
                    static_cast<long long>(checkpoint.info.step), report.loss,
                    100 * report.accuracy, static_cast<long long>(report.targets));
        return {};
      });
}

}  // namespace engine
