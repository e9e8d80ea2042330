#include "app/run/trained_model.h"

#include <string>
#include <utility>

#include "app/model/model_graph.h"
#include "app/run/serve.h"

namespace engine::run {
namespace {

// Classes are numbers to the model, whatever the data calls them.
Status CheckClassNames(const checkpoint::ClassNameLists& trained,
                       const checkpoint::ClassNameLists& given) {
  for (const auto& [target, names] : trained) {
    const auto found = given.find(target);
    if (found == given.end() || found->second == names) continue;
    size_t i = 0;
    while (i < names.size() && i < found->second.size() && names[i] == found->second[i]) ++i;
    const auto name = [i](const std::vector<std::string>& list) {
      return i < list.size() ? "'" + list[i] + "'" : std::string("nothing");
    };
    return Status::Error(StatusCode::kConfig,
                         "class %zu of '%s' is %s in the data and %s in the checkpoint: the data "
                         "needs the classes that the model was trained on, in their order",
                         i, target.c_str(), name(found->second).c_str(), name(names).c_str());
  }
  return {};
}

// Paths of a configuration are relative to the folder that its run was started in.
Status OpenData(const config::Config& config, data::DatasetSource& data) {
  const Status opened = data.Open();
  const std::string& plugin = config.run().plugins.dataset.entry.name;
  if (opened.code() == StatusCode::kMissingInput) {
    return Status::Error(StatusCode::kMissingInput,
                         "%s; the checkpoint names its data as seen from the folder of the "
                         "training: start there, or give other data (--data '%s { ... }', or --set "
                         "data.%s.KEY=PATH)",
                         opened.message(), plugin.c_str(), plugin.c_str());
  }
  return opened;
}

}  // namespace

Result<TrainedModel> DescribeModel(const checkpoint::OpenedCheckpoint& checkpoint,
                                   const config::Config& config, base::RankContext& rank,
                                   const ModelUse& use) {
  TrainedModel model;
  SetDeadlines(config.run().communication, rank);
  model.data = std::make_unique<data::DatasetSource>(config.run(), rank);
  if (!use.reads_data) ENGINE_RETURN_IF_ERROR(model.data->Make());
  if (use.reads_data || model.data->info().inputs.empty()) {
    ENGINE_RETURN_IF_ERROR(OpenData(config, *model.data));
  }
  const checkpoint::ClassNameLists& names = checkpoint.info.class_names;
  if (use.with_loss) ENGINE_RETURN_IF_ERROR(CheckClassNames(names, model.data->class_names()));
  const DatasetInfo info = model.data->info();
  model.targets = {info.targets.begin(), info.targets.end()};
  for (SampleTensor& target : model.targets) {
    const auto found = names.find(std::string(target.name));
    if (found != names.end()) target.classes = static_cast<int64_t>(found->second.size());
  }
  model.chosen = std::make_unique<plugin::PluginSelection>(config.plugins());
  model.chosen->communicator = model.chosen->optimizer = model.chosen->scheduler = {};
  model.chosen->hooks.clear();
  ENGINE_ASSIGN_OR_RETURN(model.plugins, plugin::RankPlugins::Create(*model.chosen, rank));
  model.ops = std::make_unique<weights::MadeOps>(*model.chosen, model.plugins->op_factory());
  auto request = model::RequestFor(info, use.samples, use.with_loss);
  request.targets = model.targets;
  ENGINE_ASSIGN_OR_RETURN(model.graph,
                          model::BuildGraph(config.run(), rank, request, model.ops->factory()));
  return model;
}

Result<TrainedModel> LoadModel(const checkpoint::OpenedCheckpoint& checkpoint,
                               const config::Config& config, base::RankContext& rank,
                               const ModelUse& use) {
  ENGINE_ASSIGN_OR_RETURN(TrainedModel model, DescribeModel(checkpoint, config, rank, use));
  exec::FlatLayout layout = exec::InferenceLayout(model.graph);
  graph::Program program = graph::ForwardProgram(model.graph);
  ENGINE_ASSIGN_OR_RETURN(
      model.memory, exec::ModelMemory::Create(std::move(model.graph), std::move(program),
                                              std::move(layout), *model.plugins->set().device,
                                              model.plugins->op_factory(), config.run().seed));
  ENGINE_RETURN_IF_ERROR(checkpoint::LoadParameters(*checkpoint.file, *model.memory));
  return model;
}

}  // namespace engine::run
