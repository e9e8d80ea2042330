#include "core/train/parameter_groups.h"

#include <algorithm>
#include <vector>

namespace engine::train {
namespace {

bool Fits(const ParameterGroup& group, const graph::Parameter& parameter) {
  return parameter.name.starts_with(group.prefix);
}

}  // namespace

Status ScaleParameters(std::span<const ParameterGroup> groups, graph::Graph* graph) {
  std::vector<graph::Parameter>& parameters = graph->parameters;
  for (const ParameterGroup& group : groups) {
    const auto fits = [&](const graph::Parameter& parameter) { return Fits(group, parameter); };
    if (std::any_of(parameters.begin(), parameters.end(), fits)) continue;
    return Status::Error(
        StatusCode::kConfig, "train.group: no parameter's name starts with '%s'; the first is '%s'",
        group.prefix.c_str(), parameters.empty() ? "" : parameters[0].name.c_str());
  }
  for (graph::Parameter& parameter : parameters) {
    const ParameterGroup* closest = nullptr;
    for (const ParameterGroup& group : groups) {
      if (!Fits(group, parameter)) continue;
      if (closest == nullptr || group.prefix.size() > closest->prefix.size()) closest = &group;
    }
    if (closest == nullptr) continue;
    parameter.learning_rate_scale *= static_cast<float>(closest->learning_rate_scale);
    parameter.weight_decay_scale *= static_cast<float>(closest->weight_decay_scale);
  }
  return {};
}

Status CheckHasRowTables(const graph::Graph& graph) {
  for (const graph::Parameter& parameter : graph.parameters) {
    if (parameter.trainable && parameter.row_elements > 0) return {};
  }
  return Status::Error(StatusCode::kConfig,
                       "train.sparse_pull: the model trains no table of which only the rows in the "
                       "batch are read: set it to false, or, if the model ties its token table to "
                       "its head, which reads every row, set 'tied' of the model to false");
}

}  // namespace engine::train
