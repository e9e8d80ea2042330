#include "app/weights/made_ops.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace engine::weights {

const plugin::OwnedOption* Attributes::Find(std::string_view name) const {
  const auto found = std::ranges::find(all_, name, &plugin::OwnedOption::name);
  return found == all_.end() ? nullptr : &*found;
}

int64_t Attributes::Int(std::string_view name, int64_t fallback) const {
  const auto* found = Find(name);
  return found == nullptr ? fallback : found->integer;
}

double Attributes::Float(std::string_view name, double fallback) const {
  const auto* found = Find(name);
  return found == nullptr ? fallback : found->number;
}

std::string_view Attributes::Word(std::string_view name, std::string_view fallback) const {
  const auto* found = Find(name);
  return found == nullptr ? fallback : std::string_view(found->string);
}

std::vector<int64_t> Attributes::Ints(std::string_view name, std::vector<int64_t> fallback) const {
  const auto* found = Find(name);
  if (found == nullptr) return fallback;
  return found->type == OptionType::kInt ? std::vector{found->integer} : found->integers;
}

plugin::OpFactory MadeOps::factory() {
  return [this](const std::string& name,
                const std::vector<plugin::OwnedOption>& given) -> Result<std::unique_ptr<Op>> {
    plugin::ResolvedOp resolved{.attributes = given};
    if (plugins_.resolve_op != nullptr) {
      ENGINE_ASSIGN_OR_RETURN(resolved, plugins_.resolve_op(plugins_.ops, name, given));
    }
    ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Op> op, make_(name, given));
    made_[op.get()] = std::move(resolved);
    return op;
  };
}

Attributes MadeOps::Of(const graph::Node& node) const {
  return Attributes(made_.at(node.op.get()).attributes);
}

std::string_view MadeOps::PluginOf(const graph::Node& node) const {
  const size_t index = made_.at(node.op.get()).plugin;
  return index < plugins_.ops.size() ? std::string_view(plugins_.ops[index].entry.name) : "";
}

}  // namespace engine::weights
