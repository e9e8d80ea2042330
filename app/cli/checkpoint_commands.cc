#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/checkpoint/atomic_file.h"
#include "app/checkpoint/checkpoint.h"
#include "app/cli/commands.h"
#include "app/launch/agree.h"
#include "app/launch/log.h"
#include "app/run/evaluation.h"
#include "app/run/export.h"
#include "app/run/generate.h"
#include "app/run/predict.h"
#include "app/run/trained_model.h"
#include "app/run/training.h"

namespace engine::cli {
namespace {

using Json = nlohmann::ordered_json;

// The configuration of a checkpoint, as Config::Print writes it, with other data: the text of a block
// in the place of its own, or a path for the dataset that it names.
std::string WithData(const std::string& config, const std::string& data,
                     std::vector<std::string>* overrides) {
  if (data.empty()) return config;
  const std::string head = "data {\n", whole = "\n" + config;
  const size_t begin = whole.find("\n" + head), end = whole.find("\n}\n", begin);
  if (begin == whole.npos || end == whole.npos) return config + "\ndata { " + data + " }\n";
  if (data.find('{') != data.npos) {
    return whole.substr(1, begin) + "data { " + data + " }\n" + whole.substr(end + 3);
  }
  const std::string block = whole.substr(begin + head.size(), end - begin - head.size());
  for (size_t at = block.find("\n  "); at != block.npos; at = block.find("\n  ", at + 1)) {
    const std::string word = block.substr(at + 3, block.find_first_of(" :\n", at + 3) - at - 3);
    const bool is_block = block.compare(at + 3 + word.size(), 2, " {") == 0;
    if (is_block && !word.empty() && word != "augment") {
      overrides->push_back("data." + word + ".path=" + data);
    }
  }
  return config;
}

using Body = std::function<Status(const checkpoint::OpenedCheckpoint&, const config::Config&,
                                  base::RankContext&)>;

// Ranks of this command need no communication, whatever the run used. `plugins` take the place of
// those of the run.
int WithCheckpoint(const CheckpointFlags& flags, const command::Environment& environment,
                   const Body& body, const std::vector<std::string>& plugins = {}) {
  auto plan = launch::ResolveLaunch(flags.launch, environment.variables);
  if (!plan.ok()) return command::ReportError(plan.status());
  const bool alone = plan->mode == launch::LaunchPlan::Mode::kSpawn && plan->info.world_size == 1;
  if (alone) plan->mode = launch::LaunchPlan::Mode::kThreads;
  const auto checkpoint = checkpoint::OpenCheckpoint(flags.file);
  if (!checkpoint.ok()) return command::ReportError(checkpoint.status());
  std::vector<std::string> overrides;
  const std::string text = WithData(checkpoint->info.config, flags.data, &overrides);
  overrides.insert(overrides.end(), flags.overrides.begin(), flags.overrides.end());
  const auto config = command::LoadConfig({.text = text,
                                           .origin = "configuration in " + flags.file,
                                           .is_data = true,
                                           .overrides = overrides,
                                           .plugins = plugins},
                                          flags.plugin, environment);
  if (!config.ok()) return command::ReportError(config.status());
  const launch::LaunchOutcome outcome = launch::Launch(*plan, {}, [&](base::RankContext& rank) {
    if (alone) command::EndAtFirstSignal();
    rank.log = launch::MemberLog(rank.info);
    ENGINE_RETURN_IF_ERROR(launch::CheckSameOnAllRanks(rank, "checkpoint", checkpoint->digest));
    return body(*checkpoint, *config, rank);
  });
  return command::ReportOutcome(outcome, alone);
}

// Of one process alone.
CheckpointFlags Alone(CheckpointFlags flags) {
  flags.launch = {.launcher = "none"};
  return flags;
}

Json ToJson(const std::string& file, const CheckpointFlags& flags, int64_t step,
            const run::Evaluation& done, const std::vector<std::string>& names) {
  Json all = {{"checkpoint", file},
              {"step", step},
              {"split", flags.split},
              {"loss", done.report.loss},
              {"targets", done.report.targets},
              {"seconds", done.report.seconds}};
  for (const auto& [name, value] : done.report.metrics) all[name] = value;
  for (size_t c = 0; c < done.classes.size(); ++c) {
    const run::ClassCounts& counts = done.classes[c];
    Json& one = all["classes"].emplace_back(Json{{"class", c}});
    if (c < names.size()) one["name"] = names[c];
    one.update(Json{{"targets", counts.targets},
                    {"predicted", counts.predicted},
                    {"correct", counts.correct},
                    {"precision", counts.Precision()},
                    {"recall", counts.Recall()}});
  }
  for (size_t row = 0; row * done.classes.size() < done.confusion.size(); ++row) {
    const auto begin = done.confusion.begin() + static_cast<int64_t>(row * done.classes.size());
    all["confusion"].push_back(
        std::vector<double>(begin, begin + static_cast<int64_t>(done.classes.size())));
  }
  return all;
}

// A line for each class, with the row of the confusion matrix where that fits beside it.
std::string ClassTable(const run::Evaluation& done, const std::vector<std::string>& names) {
  constexpr size_t kMostLines = 64, kMostColumns = 12;
  const size_t count = done.classes.size();
  if (count == 0 || count > kMostLines) return "";
  const bool confusion = !done.confusion.empty() && count <= kMostColumns;
  std::string text =
      fmt::format("{:>20}  {:>9}  {:>9}  {:>9}", "class", "targets", "precision", "recall");
  text += confusion ? "   predicted as\n" : "\n";
  for (size_t c = 0; c < count; ++c) {
    const run::ClassCounts& counts = done.classes[c];
    text += fmt::format("{:>20}  {:>9.6g}  {:>7.2f} %  {:>7.2f} %",
                        launch::Printable(c < names.size() ? names[c] : std::to_string(c)),
                        counts.targets, 100 * counts.Precision(), 100 * counts.Recall());
    for (size_t p = 0; confusion && p < count; ++p) {
      text += fmt::format("{}{:>5.5g}", p == 0 ? "  " : " ", done.confusion[c * count + p]);
    }
    text += "\n";
  }
  return text;
}

Status EvaluateRank(const CheckpointFlags& flags, const checkpoint::OpenedCheckpoint& checkpoint,
                    const config::Config& config, base::RankContext& rank) {
  const train::TrainOptions& train = config.run().train;
  train::BatchRequest batches{.split = flags.split == "train" ? Split::kTrain : Split::kHeldOut,
                              .global_batch = train.GlobalBatch(rank.info.world_size),
                              .rank = rank.info.rank,
                              .world_size = rank.info.world_size};
  ENGINE_ASSIGN_OR_RETURN(
      const run::TrainedModel model,
      run::LoadModel(checkpoint, config, rank,
                     {.samples = train.SamplesAtOnce(batches.MaxSamples()), .with_loss = true}));
  ENGINE_ASSIGN_OR_RETURN(const run::Evaluation done,
                          run::Evaluate(*model.memory, *model.data, batches,
                                        {.loss = run::LossOf(config.plugins().model),
                                         .max_samples = train.evaluate_samples,
                                         .by_class = true},
                                        run::SumByStore(rank.store, rank.info)));
  if (rank.info.rank != 0) return {};
  if (done.report.targets == 0) {
    return Status::Error(StatusCode::kBadData,
                         "%s has no samples in the split '%s': choose --split",
                         std::string(model.data->info().name).c_str(), flags.split.c_str());
  }
  std::vector<std::string> names;
  const auto& named = checkpoint.info.class_names;
  if (const auto found = named.find(std::string(model.data->info().targets[0].name));
      found != named.end()) {
    names = found->second;
  }
  const int64_t step = checkpoint.info.step;
  if (flags.json) {
    fmt::print("{}\n", ToJson(flags.file, flags, step, done, names).dump());
  } else {
    fmt::print("step {}  {} {}  ({} targets)\n{}", step,
               flags.split == "train" ? "train" : "held-out", run::Describe(done.report),
               done.report.targets, ClassTable(done, names));
  }
  return {};
}

// Standard output, or a file that is there once all of it is.
Status WritePredictions(const CheckpointFlags& flags, run::TrainedModel& model,
                        const checkpoint::ClassNameLists& names, const train::BatchRequest& batches,
                        const run::PredictOptions& options) {
  if (flags.out.empty()) {
    bool left = false;  // whoever read has seen enough
    const Status status =
        run::Predict(model, names, batches, options, [&](std::string_view bytes) -> Status {
          const bool written = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size();
          if (written && std::fflush(stdout) == 0) return {};
          left = errno == EPIPE;
          return Status::Error(StatusCode::kStorage, "cannot write to standard output: %s",
                               std::strerror(errno));
        });
    return left ? Status() : status;
  }
  ENGINE_ASSIGN_OR_RETURN(auto file, checkpoint::AtomicFile::Create(flags.out));
  ENGINE_RETURN_IF_ERROR(run::Predict(model, names, batches, options, [&](std::string_view bytes) {
    return file->Write(bytes.data(), bytes.size());
  }));
  return file->Commit();
}

}  // namespace

int SampleCommand(const CheckpointFlags& flags, const command::Environment& environment) {
  return WithCheckpoint(
      Alone(flags), environment,
      [&](const checkpoint::OpenedCheckpoint& checkpoint, const config::Config& config,
          base::RankContext& rank) -> Status {
        // What a sample is follows from the configuration alone: the text itself need not be there.
        ENGINE_ASSIGN_OR_RETURN(
            const run::TrainedModel model,
            run::LoadModel(checkpoint, config, rank, {.samples = 1, .reads_data = false}));
        if (!run::IsText(model.data->info())) {
          return Status::Error(StatusCode::kConfig,
                               "%s was not trained on text, so it cannot continue one",
                               flags.file.c_str());
        }
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
  return WithCheckpoint(flags, environment, std::bind_front(EvaluateRank, std::cref(flags)));
}

int PredictCommand(CheckpointFlags flags, const command::Environment& environment) {
  // Samples as they are, in their order.
  flags.overrides.insert(flags.overrides.end(), {"data.shuffle=false", "data.augment.flip=false",
                                                 "data.augment.crop_padding=0"});
  return WithCheckpoint(
      Alone(flags), environment,
      [&](const checkpoint::OpenedCheckpoint& checkpoint, const config::Config& config,
          base::RankContext& rank) -> Status {
        const train::TrainOptions& train = config.run().train;
        const train::BatchRequest batches{.global_batch =
                                              train.SamplesAtOnce(train.GlobalBatch(1))};
        ENGINE_ASSIGN_OR_RETURN(
            run::TrainedModel model,
            run::LoadModel(checkpoint, config, rank, {.samples = batches.global_batch}));
        const run::PredictOptions options{
            .loss = run::LossOf(config.plugins().model),
            .top = flags.top,
            .outputs = flags.outputs,
            .held_out_only = flags.split == "held_out",
            .format = flags.format == "csv"   ? run::PredictionFormat::kCsv
                      : flags.format == "npy" ? run::PredictionFormat::kNpy
                                              : run::PredictionFormat::kJson};
        return WritePredictions(flags, model, checkpoint.info.class_names, batches, options);
      });
}

int ExportCommand(const CheckpointFlags& flags, const command::Environment& environment) {
  const run::ExportFiles files{.safetensors = flags.safetensors,
                               .onnx = flags.onnx,
                               .batch = flags.batch == "dynamic" ? 0 : std::stoll(flags.batch),
                               .fold_batch_norm = flags.fold};
  if (files.safetensors.empty() && files.onnx.empty()) {
    return command::ReportError(
        Status::Error(StatusCode::kConfig,
                      "export writes nothing: give --onnx FILE, --safetensors FILE or both"));
  }
  const Body body = [&](const checkpoint::OpenedCheckpoint& checkpoint,
                        const config::Config& config, base::RankContext& rank) -> Status {
    ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> notes,
                            run::ExportModel(checkpoint, config, rank, files));
    for (const std::string& note : notes) fmt::print(stderr, "engine: {}\n", note);
    for (const std::string& file : {files.safetensors, files.onnx}) {
      if (!file.empty()) fmt::print("step {}  {}\n", checkpoint.info.step, file);
    }
    return {};
  };
  // Ops only say what shapes they make: those of the CPU do on any machine.
  return WithCheckpoint(Alone(flags), environment, body, {"cpu_ops", "null"});
}

}  // namespace engine::cli
