#include "app/config/config.h"

#include <algorithm>
#include <utility>

#include "app/config/checks.h"
#include "app/config/discover.h"
#include "app/config/engine.pb.h"
#include "app/config/layers.h"
#include "app/config/learning_rate.h"
#include "app/config/print.h"
#include "app/config/schema.h"
#include "app/plugins/loss_scaler.h"

namespace engine::config {
namespace {

Status CheckText(const ConfigRequest& request, const SourceText& source) {
  if (request.text.size() > kMaxConfigBytes) {
    return Status::Error(StatusCode::kConfig, "%s: %zu bytes are too many for a configuration",
                         request.origin.c_str(), request.text.size());
  }
  const size_t nul = request.text.find('\0');
  if (nul == std::string::npos) return {};
  return source.Error(StatusCode::kConfig, nul, "a NUL byte; is this a text file?");
}

std::vector<plugin::PluginEntry> Loadable(const plugins::PluginCatalog& catalog) {
  std::vector<plugin::PluginEntry> entries;
  for (const plugins::PluginFile& file : catalog.files()) {
    if (file.problem.ok() && !file.shadowed) entries.push_back(file);
  }
  return entries;
}

// The text by the schema of its plugins, with what the command line says.
Result<Document> ParseAll(const ConfigRequest& request, std::shared_ptr<const SourceText> source,
                          const Schema& schema, const Discovery& found, Problems* problems) {
  ENGINE_ASSIGN_OR_RETURN(Document document,
                          Document::Parse(std::move(source), schema.prototype(),
                                          Document::UnknownKeys::kRefuse, problems));
  for (const std::string& argument : request.overrides) {
    const Status status = document.Override(argument);
    if (!status.ok()) problems->LeaveOut(status);
  }
  const std::vector<std::string> from_document(found.plugin_path.size());
  document.SetList("plugin_path", found.plugin_path, from_document);
  document.SetList("plugins", found.plugins, found.flags);
  return document;
}

// The part of the configuration that engine.proto describes.
Result<proto::Config> ToProto(const Document& document) {
  proto::Config proto;
  if (!proto.ParseFromString(document.message().SerializeAsString())) {
    return Status::Error(StatusCode::kInternal, "the configuration does not survive a copy");
  }
  return proto;
}

LearningRate::Point ReadPoint(const proto::RatePoint& point) {
  using Unit = LearningRate::Unit;
  const auto curve = static_cast<LearningRate::Curve>(point.curve());  // in the same order
  if (point.has_step()) return {point.step(), Unit::kSteps, point.factor(), curve};
  if (point.has_epoch()) return {point.epoch(), Unit::kEpochs, point.factor(), curve};
  return {point.fraction(), Unit::kRuns, point.factor(), curve};
}

LearningRate ReadLearningRate(const proto::LearningRate& rate) {
  using Unit = LearningRate::Unit;
  LearningRate read{.base = rate.base(), .points = {}};
  for (const proto::RatePoint& point : rate.point()) read.points.push_back(ReadPoint(point));
  if (!read.points.empty()) return read;
  if (rate.warmup_steps() > 0) read.points.push_back({.factor = 0});
  read.points.push_back({.at = static_cast<double>(rate.warmup_steps())});
  if (rate.schedule() == proto::LearningRate::COSINE) {
    read.points.push_back({1, Unit::kRuns, rate.final_ratio(), LearningRate::Curve::kCosine});
  }
  return read;
}

train::TrainOptions ReadTrain(const proto::Config& proto) {
  const proto::Train& train = proto.train();
  train::TrainOptions options{
      .learning_rate = ReadLearningRate(train.learning_rate()),
      .evaluate_every = train.evaluate_every(),
      .evaluate_samples = train.evaluate_samples(),
      .checkpoint_every = train.checkpoint_every(),
      .check_ranks_every = train.check_ranks_every(),
      .shard_optimizer = train.shard_optimizer(),
      .sparse_pull = train.sparse_pull(),
      .micro_batches = train.micro_batches(),
      .loss_scale = train.loss_scale(),
      .record_steps = train.record_steps(),
      .frozen = {proto.model().frozen().begin(), proto.model().frozen().end()},
      .recompute = {proto.model().recompute().begin(), proto.model().recompute().end()}};
  if (train.has_steps()) options.length.steps = train.steps();
  if (train.has_epochs()) options.length.epochs = train.epochs();
  if (train.has_tokens()) options.length.tokens = train.tokens();
  if (train.has_global_batch()) options.global_batch = train.global_batch();
  if (train.has_batch_per_rank()) options.batch_per_rank = train.batch_per_rank();
  for (const proto::ParameterGroup& group : train.group()) {
    options.groups.push_back({.prefix = group.parameters(),
                              .learning_rate_scale = group.learning_rate_scale(),
                              .weight_decay_scale = group.weight_decay_scale()});
  }
  return options;
}

train::RunConfig ReadRun(const proto::Config& proto) {
  const proto::Data& data = proto.data();
  return {.seed = proto.seed(),
          .data = {.shuffle = data.shuffle(),
                   .prefetch = data.prefetch(),
                   .crop_padding = data.augment().crop_padding(),
                   .flip = data.augment().flip()},
          .train = ReadTrain(proto),
          .communication = {.timeout_ms = proto.communication().timeout_ms(),
                            .rendezvous_timeout_ms = proto.communication().rendezvous_timeout_ms()},
          .trace_spans = proto.output().trace_spans()};
}

OutputOptions ReadOutput(const proto::Output& output) {
  return {.checkpoint = output.checkpoint(),
          .keep_checkpoints = output.keep_checkpoints(),
          .best_checkpoint = output.best_checkpoint(),
          .metrics = output.metrics(),
          .tensorboard = output.tensorboard(),
          .trace = output.trace(),
          .sample_bytes = output.sample_bytes()};
}

InitOptions ReadInit(const proto::Train& train) {
  InitOptions init{
      .from = train.init_from(),
      .rules = {},
      .allow_missing = {train.init_allow_missing().begin(), train.init_allow_missing().end()}};
  for (const proto::InitMap& rule : train.init_map()) {
    init.rules.push_back(
        {.from = rule.from(), .to = rule.to(), .transpose = rule.transpose(), .crop = rule.crop()});
  }
  return init;
}

// Before all other hooks: those of clipping would end the run, or hide what it looks for.
void AddLossScaler(const proto::Train& train, plugin::PluginSelection* plugins) {
  const proto::LossScaling& scaling = train.loss_scaling();
  if (scaling.mode() != proto::LossScaling::DYNAMIC) return;
  plugins->hooks.insert(plugins->hooks.begin(),
                        plugins::LossScalerOf({.first = scaling.first(),
                                               .growth_factor = scaling.growth_factor(),
                                               .backoff_factor = scaling.backoff_factor(),
                                               .growth_interval = scaling.growth_interval()}));
}

void DropOutputs(const Document& document, OutputOptions* output) {
  const Cursor block = document.At("output");
  const auto drop = [&](const char* key, std::string* path) {
    if (path->empty() || document.Origin(block, block.Field(key)) == "--set") return;
    output->dropped.push_back(std::string("output.") + key);
    path->clear();
  };
  drop("checkpoint", &output->checkpoint);
  drop("best_checkpoint", &output->best_checkpoint);
  drop("metrics", &output->metrics);
  drop("tensorboard", &output->tensorboard);
  drop("trace", &output->trace);
}

}  // namespace

Result<Config> Config::Load(const ConfigRequest& request) {
  const auto source = std::make_shared<const SourceText>(request.origin, request.text);
  ENGINE_RETURN_IF_ERROR(CheckText(request, *source));
  ENGINE_ASSIGN_OR_RETURN(Discovery found, Discover(request, source));
  ENGINE_ASSIGN_OR_RETURN(const auto schema, Schema::Build(found.chosen, Loadable(found.catalog)));
  Problems problems;
  ENGINE_ASSIGN_OR_RETURN(const Document document,
                          ParseAll(request, source, *schema, found, &problems));
  CheckDocument(document, &problems);
  ENGINE_ASSIGN_OR_RETURN(const auto choices,
                          ReadPluginOptions(document, found, *schema, &problems));
  plugin::PluginChoice dataset = ReadChoice(document, *schema, "data", &problems);
  plugin::PluginChoice model = ReadChoice(document, *schema, "model", &problems);
  ENGINE_RETURN_IF_ERROR(problems.ToStatus());

  Config config;
  ENGINE_ASSIGN_OR_RETURN(const proto::Config proto, ToProto(document));
  config.run_ = ReadRun(proto);
  config.output_ = ReadOutput(proto.output());
  config.init_ = ReadInit(proto.train());
  const proto::EarlyStopping& stopping = proto.train().early_stopping();
  config.best_ = {stopping.patience(), stopping.min_delta(), stopping.metric()};
  if (request.is_data) DropOutputs(document, &config.output_);
  ENGINE_ASSIGN_OR_RETURN(config.run_.plugins, plugins::AssignRoles(choices, found.catalog));
  AddLossScaler(proto.train(), &config.run_.plugins);
  config.run_.plugins.dataset = std::move(dataset);
  config.run_.plugins.model = std::move(model);
  config.run_.plugins.versions = plugins::VersionsOf(config.run_.plugins);
  config.catalog_ = std::make_shared<const plugins::PluginCatalog>(std::move(found.catalog));
  config.run_.text = PrintDocument(document, *schema, PrintForm::kText);
  config.compared_ = PrintDocument(document, *schema, PrintForm::kCompared);
  config.printed_with_origins_ = PrintDocument(document, *schema, PrintForm::kWithOrigins);
  return config;
}

Config Config::WithGlobalBatch(int64_t samples) const {
  Config config = *this;
  config.run_.train.global_batch = samples;
  config.run_.train.batch_per_rank.reset();
  return config;
}

Config Config::OnHost(const plugins::HostNetwork& network) const {
  Config config = *this;
  plugins::UseNetwork(network, &config.run_.plugins.communicator);
  return config;
}

Config Config::SurvivingLosses(int32_t ranks, int32_t left) const {
  const train::TrainOptions& all = run_.train;
  const int64_t batch = all.GlobalBatch(ranks);
  const int64_t at_once = all.SamplesAtOnce(train::CeilDiv(batch, ranks));
  Config config = ranks == left ? *this : WithGlobalBatch(batch);
  config.run_.train.micro_batches =
      std::max(all.micro_batches, train::CeilDiv(train::CeilDiv(batch, left), at_once));
  config.compared_ += "--restarts, --min-ranks: given\n";
  return config;
}

}  // namespace engine::config
