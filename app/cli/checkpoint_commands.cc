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
                               const ModelInputs& inputs, RankContext& rank) {
  TrainedModel model;
  rank.log = MemberLog(rank.info);
  ENGINE_ASSIGN_OR_RETURN(model.plugins, RankPlugins::Create(config.plugins(), rank));
  const OpFactory& factory = model.plugins->op_factory();
  ENGINE_ASSIGN_OR_RETURN(Graph graph, BuildGraph(config, inputs, factory));
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
        if (!config.proto().data().has_text()) {
          return Status::Error(StatusCode::kConfig,
                               "%s was not trained on text, so it cannot continue one",
                               flags.file.c_str());
        }
        // The shape of the data follows from the configuration alone: the text itself need not be
        // there.
        const int64_t context = config.proto().data().text().context();
        const ModelInputs inputs{.input_shape = {context},
                                 .input_dtype = DType::kInt32,
                                 .target_shape = {context},
                                 .classes = 256,
                                 .max_samples = 1,
                                 .with_loss = false};
        ENGINE_ASSIGN_OR_RETURN(const TrainedModel model,
                                LoadModel(checkpoint, config, inputs, rank));
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
        ENGINE_ASSIGN_OR_RETURN(const DatasetPair data, OpenData(config));
        const int64_t batch = run.train.GlobalBatch(1);
        const int64_t at_once = run.train.SamplesAtOnce(batch);
        ENGINE_ASSIGN_OR_RETURN(
            const TrainedModel model,
            LoadModel(checkpoint, config, InputsOf(data.eval->info(), at_once, true), rank));
        const EvaluationRequest request{
            .data = *data.eval,
            .batches = {.seed = run.seed, .global_batch = batch, .shuffle = false},
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
