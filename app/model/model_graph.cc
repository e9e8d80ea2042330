#include "app/model/model_graph.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "core/plugin/create_object.h"
#include "core/plugin/plugin_host.h"

namespace engine::model {
namespace {

bool Fits(const train::ParameterGroup& group, const graph::Parameter& parameter) {
  return parameter.name.starts_with(group.prefix);
}

}  // namespace

ModelRequest RequestFor(const DatasetInfo& info, int64_t max_samples, bool with_loss) {
  return {.inputs = info.inputs,
          .targets = info.targets,
          .max_samples = max_samples,
          .with_loss = with_loss};
}

// The model and its host are gone when the graph is built: a graph keeps nothing of either.
Result<graph::Graph> BuildGraph(const train::RunConfig& config, base::RankContext& rank,
                                ModelRequest request, const plugin::OpFactory& ops) {
  const plugin::PluginChoice& choice = config.plugins.model;
  plugin::PluginHost host(choice.entry.name, rank, nullptr, nullptr);
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                          plugin::Create<Model>(choice, host, rank.watch));
  request.frozen = config.train.frozen;
  request.recompute = config.train.recompute;
  request.plugins = &config.plugins;
  request.watch = rank.watch;
  Result<graph::Graph> graph = [&] {
    const base::OpenCall open(rank.watch, choice.entry.Title(), "Build");
    return BuildModel(*model, request, ops);
  }();
  {
    const base::OpenCall open(rank.watch, choice.entry.Title(), "its destructor");
    model.reset();
  }
  if (!graph.ok()) return graph.status().WithContext("model '%s'", choice.entry.name.c_str());
  ENGINE_RETURN_IF_ERROR(ScaleParameters(config.train.groups, &*graph));
  return graph;
}

Status ScaleParameters(std::span<const train::ParameterGroup> groups, graph::Graph* graph) {
  std::vector<graph::Parameter>& parameters = graph->parameters;
  for (const train::ParameterGroup& group : groups) {
    const auto fits = [&](const graph::Parameter& parameter) { return Fits(group, parameter); };
    if (std::any_of(parameters.begin(), parameters.end(), fits)) continue;
    return Status::Error(
        StatusCode::kConfig, "train.group: no parameter's name starts with '%s'; the first is '%s'",
        group.prefix.c_str(), parameters.empty() ? "" : parameters[0].name.c_str());
  }
  for (graph::Parameter& parameter : parameters) {
    const train::ParameterGroup* closest = nullptr;
    for (const train::ParameterGroup& group : groups) {
      if (!Fits(group, parameter)) continue;
      if (closest == nullptr || group.prefix.size() > closest->prefix.size()) closest = &group;
    }
    if (closest == nullptr) continue;
    parameter.learning_rate_scale *= static_cast<float>(closest->learning_rate_scale);
    parameter.weight_decay_scale *= static_cast<float>(closest->weight_decay_scale);
  }
  return {};
}

}  // namespace engine::model
