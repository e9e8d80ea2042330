#include "tools/conform/subject.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "app/plugins/option_value.h"
#include "app/plugins/words.h"

namespace engine::conform {
namespace {

std::optional<Subject>& Kept() {
  static std::optional<Subject> kept;
  return kept;
}

struct SetFlags {
  const std::vector<std::string>& arguments;
  const std::vector<std::string>& folders;
  const std::vector<PluginUnderTest>& others;
  std::set<std::string> used = {};  // of arguments

  // Of `plugin`, and of the plugins inside of it; it is inside of those `around` it.
  Status Give(std::vector<std::string> around, PluginUnderTest* plugin) {
    for (const std::string& argument : arguments) {
      const bool judged = around.empty() && argument.find('.') > argument.find('=');
      if (!judged && !argument.starts_with(plugin->name() + ".")) continue;
      used.insert(argument);
      ENGINE_RETURN_IF_ERROR(plugin->Set(argument));
    }
    ENGINE_RETURN_IF_ERROR(plugin->CheckRequired());
    around.push_back(plugin->name());
    const auto specs = plugins::OptionsOf(plugin->file().options, "");
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i]->type != OptionType::kPlugin) continue;
      const plugin::OwnedOption option = plugin->Values()[i];
      const std::string kind(specs[i]->choices.view());
      auto inner = Find(option.string);
      Status refused = inner.status();
      if (inner.ok() && Name(inner->file().kind) != kind) {
        refused = Status::Error(StatusCode::kPlugin, "'%s' is no %s", option.string.c_str(),
                                kind.c_str());
      } else if (std::ranges::count(around, option.string) > 0) {
        refused = Status::Error(StatusCode::kPlugin, "it would be inside of itself: %s",
                                plugins::Join(around, " > ").c_str());
      }
      if (refused.ok()) refused = Give(around, &*inner);
      ENGINE_RETURN_IF_ERROR(
          refused.WithContext("--set %s.%s", plugin->name().c_str(), option.name.c_str()));
      plugin->AddInner(*inner);
    }
    return {};
  }

  Result<PluginUnderTest> Find(const std::string& name) const {
    const auto found = std::ranges::find(others, name, &PluginUnderTest::name);
    if (found != others.end()) return *found;
    ENGINE_ASSIGN_OR_RETURN(const plugins::PluginFile file,
                            plugins::PluginCatalog::Scan(folders).Find(name));
    return PluginUnderTest::Load(file.path);
  }
};

}  // namespace

const Subject& UnderTest() {
  return *Kept();
}

bool HasSubject() {
  return Kept().has_value();
}

void SetSubject(Subject subject) {
  Kept() = std::move(subject);
}

Status Subject::SetOptions(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& folders) {
  const std::vector<PluginUnderTest> untouched = others;
  SetFlags flags{arguments, folders, untouched};
  for (PluginUnderTest& other : others) ENGINE_RETURN_IF_ERROR(flags.Give({plugin.name()}, &other));
  ENGINE_RETURN_IF_ERROR(flags.Give({}, &plugin));
  for (const std::string& argument : arguments) {
    if (!flags.used.contains(argument)) ENGINE_RETURN_IF_ERROR(plugin.Set(argument));
  }
  return {};
}

const PluginUnderTest* Subject::Other(PluginKind kind) const {
  const auto found = std::ranges::find_if(
      others, [kind](const PluginUnderTest& other) { return other.file().kind == kind; });
  return found == others.end() ? nullptr : &*found;
}

}  // namespace engine::conform
