#include <algorithm>

#include "core/models/model.h"

namespace engine {
namespace {

bool Fits(const config::ParameterGroup& group, const Parameter& parameter) {
  return parameter.name.starts_with(group.parameters());
}

}  // namespace

Status ScaleParameters(const google::protobuf::RepeatedPtrField<config::ParameterGroup>& groups,
                       Graph* graph) {
  std::vector<Parameter>& parameters = graph->parameters;
  for (const config::ParameterGroup& group : groups) {
    const auto fits = [&](const Parameter& parameter) { return Fits(group, parameter); };
    if (std::any_of(parameters.begin(), parameters.end(), fits)) continue;
    return Status::Error(
        StatusCode::kConfig, "train.group: no parameter's name starts with '%s'; the first is '%s'",
        group.parameters().c_str(), parameters.empty() ? "" : parameters[0].name.c_str());
  }
  for (Parameter& parameter : parameters) {
    const config::ParameterGroup* closest = nullptr;
    for (const config::ParameterGroup& group : groups) {
      if (!Fits(group, parameter)) continue;
      const bool longer =
          closest == nullptr || group.parameters().size() > closest->parameters().size();
      if (longer) closest = &group;
    }
    if (closest == nullptr) continue;
    parameter.learning_rate_scale *= static_cast<float>(closest->learning_rate_scale());
    parameter.weight_decay_scale *= static_cast<float>(closest->weight_decay_scale());
  }
  return {};
}

}  // namespace engine
