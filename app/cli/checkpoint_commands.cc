#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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
#include "app/run/generate.h"
#include "app/run/predict.h"
#include "app/run/sample_image.h"
#include "app/run/trained_model.h"
#include "app/run/training.h"
#include "app/weights/export_model.h"

namespace engine::cli {
namespace {

using Json = nlohmann::ordered_json;

// The configuration of a checkpoint, as Config::Print writes it, with another data block.
std::string WithData(const std::string& config, const std::string& data) {
  const std::string whole = "\n" + config, block = "data { " + data + " }\n";
  const size_t begin = whole.find("\ndata {\n"), end = whole.find("\n}\n", begin);
  if (begin == whole.npos || end == whole.npos) return config + "\n" + block;
  return whole.substr(1, begin) + block + whole.substr(end + 3);
}

// That of `flags`: with its data block, or with a path for the dataset that the checkpoint names. Where
// data to train on and to evaluate on can be given apart it is the latter, so that classes and means are
// those of the former, and the only samples that count.
Result<config::Config> LoadConfig(const std::string& text, CheckpointFlags* flags,
                                  const command::Environment& environment) {
  const bool is_block = flags->data.find('{') != std::string::npos;
  const auto load = [&](const std::vector<std::string>& overrides) {
    return command::LoadConfig({.text = is_block ? WithData(text, flags->data) : text,
                                .origin = "configuration in " + flags->file,
                                .is_data = true,
                                .overrides = overrides,
                                .plugins = flags->plugins},
                               flags->plugin, environment);
  };
  auto config = load(flags->overrides);
  if (!config.ok() || is_block || flags->data.empty()) return config;
  const plugin::PluginEntry& dataset = config->run().plugins.dataset.entry;
  for (const char* key : {"eval_path", "path"}) {
    const auto is_key = [&](const OptionSpec& option) { return option.name.view() == key; };
    if (std::ranges::none_of(dataset.options, is_key)) continue;
    if (std::string_view(key) == "eval_path") {
      if (flags->split == "train") {
        return Status::Error(StatusCode::kInvalidArgument,
                             "--split train: data of --data PATH is held out from training: drop "
                             "one of the two, or give a block, --data '%s { ... }'",
                             dataset.name.c_str());
      }
      flags->split = "held_out";
    }
    std::vector<std::string> overrides = flags->overrides;
    overrides.push_back("data." + dataset.name + "." + key + "=" + flags->data);
    return load(overrides);
  }
  return Status::Error(StatusCode::kConfig,
                       "--data %s: the data of the checkpoint, '%s', is no single path: give a "
                       "block, --data '%s { ... }'",
                       flags->data.c_str(), dataset.name.c_str(), dataset.name.c_str());
}

using Body = std::function<Status(const CheckpointFlags&, const checkpoint::OpenedCheckpoint&,
                                  const config::Config&, base::RankContext&)>;

// Ranks of this command need no communication, whatever the run used.
int WithCheckpoint(CheckpointFlags flags, const command::Environment& environment,
                   const Body& body) {
  auto plan = launch::ResolveLaunch(flags.launch, environment.variables);
  if (!plan.ok()) return command::ReportError(plan.status());
  const bool alone = plan->mode == launch::LaunchPlan::Mode::kSpawn && plan->info.world_size == 1;
  if (alone) plan->mode = launch::LaunchPlan::Mode::kThreads;
  const auto checkpoint = checkpoint::OpenCheckpoint(flags.file);
  if (!checkpoint.ok()) return command::ReportError(checkpoint.status());
  const auto config = LoadConfig(checkpoint->info.config, &flags, environment);
  if (!config.ok()) return command::ReportError(config.status());
  const launch::LaunchOutcome outcome = launch::Launch(*plan, {}, [&](base::RankContext& rank) {
    if (alone) command::EndAtFirstSignal();
    rank.log = launch::MemberLog(rank.info);
    const std::string text = "--split " + flags.split + "\n" + config->compared();
    for (const auto& [what, value] :
         {std::pair("checkpoint", checkpoint->digest),
          std::pair("plugins", config->plugins().versions), std::pair("configuration", text)}) {
      ENGINE_RETURN_IF_ERROR(launch::CheckSameOnAllRanks(rank, what, value));
    }
    return body(flags, *checkpoint, *config, rank);
  });
  return command::ReportOutcome(outcome, alone);
}

// Of one process alone.
CheckpointFlags Alone(CheckpointFlags flags) {
  flags.launch = {.launcher = "none"};
  return flags;
}

// Samples as they are, in their order.
CheckpointFlags AsTheyAre(CheckpointFlags flags) {
  flags.overrides.insert(flags.overrides.end(), {"data.shuffle=false", "data.augment.flip=false",
                                                 "data.augment.crop_padding=0"});
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
  const DatasetInfo data = model.data->info();
  ENGINE_RETURN_IF_ERROR(
      launch::CheckSameOnAllRanks(rank, "data",
                                  fmt::format("{}\n{} and {} samples", std::string(data.digest),
                                              data.train_samples, data.held_out_samples)));
  ENGINE_ASSIGN_OR_RETURN(const run::Evaluation done,
                          run::Evaluate(*model.memory, *model.data, batches,
                                        {.loss = run::LossOf(config.plugins().model),
                                         .max_samples = train.evaluate_samples,
                                         .by_class = true,
                                         .mistakes = flags.mistakes},
                                        run::SumByStore(rank.store, rank.info)));
  if (rank.info.rank != 0) return {};
  if (done.report.targets == 0) {
    return Status::Error(StatusCode::kBadData,
                         "%s has no samples in the split '%s': choose --split",
                         std::string(data.name).c_str(), flags.split.c_str());
  }
  std::vector<std::string> names;
  const auto& named = checkpoint.info.class_names;
  const auto found = named.find(data.targets.empty() ? "" : std::string(data.targets[0].name));
  if (found != named.end()) names = found->second;
  const int64_t step = checkpoint.info.step;
  if (flags.json) {
    Json all = ToJson(flags.file, flags, step, done, names);
    for (const run::Mistake& one : done.mistakes) {
      ENGINE_ASSIGN_OR_RETURN(const std::string image,
                              run::SampleImage(*model.data, batches.split, one.sample));
      all["mistakes"].push_back({{"sample", one.sample},
                                 {"class", one.target},
                                 {"predicted", one.predicted},
                                 {"margin", one.margin},
                                 {"image", image}});
    }
    fmt::print("{}\n", all.dump());
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
          if (written) return {};
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

// Of a model of tokens: numbers come and go, those of the prompt first.
Status SampleTokens(exec::ModelMemory& memory, const std::string& prompt,
                    const run::GenerateOptions& options) {
  std::vector<int32_t> tokens;
  const char* at = prompt.c_str();
  while (*(at += std::strspn(at, ", ")) != '\0') {
    char* end = nullptr;
    const long number = std::strtol(at, &end, 10);  // NOLINT(google-runtime-int)
    if (end == at || number < 0 || number > INT32_MAX) break;
    tokens.push_back(static_cast<int32_t>(number));
    at = end;
  }
  if (*at != '\0') tokens.clear();
  ENGINE_RETURN_IF_ERROR(run::GenerateTokens(memory, options, &tokens));
  fmt::print("{}\n", fmt::join(tokens, " "));
  return {};
}

}  // namespace

int SampleCommand(const CheckpointFlags& given, const command::Environment& environment) {
  return WithCheckpoint(
      Alone(given), environment,
      [](const CheckpointFlags& flags, const checkpoint::OpenedCheckpoint& checkpoint,
         const config::Config& config, base::RankContext& rank) -> Status {
        // What a sample is follows from the configuration alone: the text itself need not be there.
        ENGINE_ASSIGN_OR_RETURN(
            const run::TrainedModel model,
            run::LoadModel(checkpoint, config, rank, {.samples = 1, .reads_data = false}));
        const run::GenerateOptions options{.count = flags.count,
                                           .temperature = flags.temperature,
                                           .top_k = flags.top_k,
                                           .seed = flags.seed};
        if (!run::IsText(model.data->info())) {
          return SampleTokens(*model.memory, flags.prompt, options)
              .WithContext("%s was not trained on bytes of text", flags.file.c_str());
        }
        ENGINE_ASSIGN_OR_RETURN(const std::string text,
                                run::Generate(*model.memory, flags.prompt, options));
        std::printf("%s%s\n", flags.prompt.c_str(), text.c_str());
        return {};
      });
}

int EvalCommand(const CheckpointFlags& flags, const command::Environment& environment) {
  return WithCheckpoint(AsTheyAre(flags), environment, EvaluateRank);
}

int PredictCommand(const CheckpointFlags& given, const command::Environment& environment) {
  if ((given.outputs && given.format != "json") || (given.top > 1 && given.format == "npy")) {
    return command::ReportError(Status::Error(
        StatusCode::kInvalidArgument,
        "--outputs is of --format json, and --top of json and csv: drop it, or choose "
        "another format (npy is the outputs)"));
  }
  return WithCheckpoint(
      AsTheyAre(Alone(given)), environment,
      [](const CheckpointFlags& flags, const checkpoint::OpenedCheckpoint& checkpoint,
         const config::Config& config, base::RankContext& rank) -> Status {
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

int ExportCommand(CheckpointFlags flags, const command::Environment& environment) {
  if (flags.safetensors.empty() && flags.onnx.empty()) {
    return command::ReportError(
        Status::Error(StatusCode::kConfig,
                      "export writes nothing: give --onnx FILE, --safetensors FILE or both"));
  }
  const Body body = [](const CheckpointFlags& given, const checkpoint::OpenedCheckpoint& checkpoint,
                       const config::Config& config, base::RankContext& rank) -> Status {
    const bool any_batch = given.batch == "dynamic";
    ENGINE_ASSIGN_OR_RETURN(const run::TrainedModel trained,
                            run::DescribeModel(checkpoint, config, rank,
                                               {.samples = any_batch ? 1 : std::stoll(given.batch),
                                                .reads_data = false}));
    ENGINE_ASSIGN_OR_RETURN(std::vector<const float*> values,
                            weights::ValuesOf(*checkpoint.file, trained.graph));
    const weights::TrainedGraph model{trained.graph, *trained.ops, std::move(values)};
    if (!given.safetensors.empty()) {
      ENGINE_RETURN_IF_ERROR(weights::ExportSafetensors(given.safetensors, model));
      fmt::print("step {}  {}\n", checkpoint.info.step, given.safetensors);
    }
    if (given.onnx.empty()) return {};
    ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> notes,
                            weights::ExportOnnx(given.onnx, model,
                                                {.name = config.plugins().model.entry.name,
                                                 .any_batch = any_batch,
                                                 .fold_batch_norm = given.fold}));
    for (const std::string& note : notes) fmt::print(stderr, "engine: {}\n", note);
    fmt::print("step {}  {}\n", checkpoint.info.step, given.onnx);
    return {};
  };
  // Ops only say what shapes they make: those of the CPU do on any machine.
  flags.plugins = {"cpu_ops", "null"};
  return WithCheckpoint(Alone(flags), environment, body);
}

}  // namespace engine::cli
