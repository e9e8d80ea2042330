#include "tools/conform/plugin_under_test.h"

#include "app/plugins/option_value.h"
#include "app/plugins/words.h"

namespace engine::conform {
namespace {

std::shared_ptr<const std::vector<LayerSpec>> OneLayer() {
  static const OptionValue units{.name = "units", .type = OptionType::kInt, .integer = 10};
  static const std::vector<LayerSpec> layers = {{.op = "linear", .attributes = {&units, 1}}};
  return {std::shared_ptr<void>(), &layers};  // never freed
}

std::vector<plugin::OwnedOption> ValuesOf(std::span<const OptionSpec> specs, std::string_view scope,
                                          const OptionValues::Overrides& overrides) {
  std::vector<plugin::OwnedOption> values;
  for (const OptionSpec& spec : specs) {
    if (spec.scope.view() != scope) continue;
    values.push_back(plugins::DefaultOf(spec));
    if (spec.type == OptionType::kLayers && plugins::IsRequired(spec)) {
      values.back().layers = OneLayer();
    }
    const auto given = overrides.find(values.back().name);
    if (given == overrides.end()) continue;
    if (auto value = plugins::ParseOptionValue(spec, given->second); value.ok()) {
      values.back() = std::move(*value);
    }
  }
  return values;
}

}  // namespace

OptionValues::OptionValues(std::span<const OptionSpec> specs, std::string_view scope,
                           const Overrides& overrides)
    : owned_(ValuesOf(specs, scope, overrides)), values_(plugin::Views(owned_)) {}

Result<PluginUnderTest> PluginUnderTest::Load(const std::string& path) {
  plugins::PluginFile file = plugins::ReadPluginFile(plugins::AbsolutePath(path));
  if (!file.problem.ok()) return file.problem;
  return PluginUnderTest(std::move(file));
}

Status PluginUnderTest::Set(const std::string& argument) {
  const size_t equals = argument.find('=');
  std::string key = argument.substr(0, equals);
  if (key.starts_with(name() + ".")) key.erase(0, name().size() + 1);
  std::vector<std::string> names;
  for (const OptionSpec* spec : plugins::OptionsOf(file_.options, "")) {
    names.emplace_back(spec->name.view());
    if (names.back() != key || equals == std::string::npos) continue;
    const std::string text = argument.substr(equals + 1);
    const auto value = plugins::ParseOptionValue(*spec, text);
    const Status checked = value.ok() ? plugins::CheckOptionValue(*spec, *value) : value.status();
    if (!checked.ok()) return checked.WithContext("--set %s", key.c_str());
    set_[key] = text;
    return {};
  }
  return Status::Error(StatusCode::kConfig,
                       "--set %s: it must be KEY=VALUE with an option of plugin '%s'%s",
                       argument.c_str(), name().c_str(), plugins::DidYouMean(key, names).c_str());
}

Status PluginUnderTest::CheckRequired() const {
  for (const OptionSpec* spec : plugins::OptionsOf(file_.options, "")) {
    const std::string option(spec->name.view());
    const bool has_value = !plugins::IsRequired(*spec) || spec->type == OptionType::kLayers;
    if (has_value || set_.contains(option)) continue;
    return Status::Error(StatusCode::kConfig,
                         "option '%s' of plugin '%s' has no default: give --set %s=VALUE",
                         option.c_str(), name().c_str(), option.c_str());
  }
  return {};
}

}  // namespace engine::conform
