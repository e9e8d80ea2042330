#include "app/config/discover.h"

#include <algorithm>
#include <utility>

#include "app/config/engine.pb.h"
#include "app/plugins/descriptor.h"
#include "app/plugins/roles.h"

namespace engine::config {
namespace {

constexpr size_t kMostPlugins = 256;  // to find each in a list takes time in its square

// Adds a plugin that `flag` names: in place of the plugin of its role in the text, unless a flag
// chose that one too, which AssignRoles refuses.
void Add(const std::string& name, const std::string& flag, plugin::PluginEntry entry,
         Discovery* found) {
  const std::string written = name.find('/') == std::string::npos ? name : entry.path;
  for (size_t i = 0; i < found->chosen.size(); ++i) {
    const plugin::PluginEntry& other = found->chosen[i];
    const bool same_role =
        plugins::FillsRole(entry) && plugins::FillsRole(other) && entry.kind == other.kind;
    if (!same_role && entry.name != other.name) continue;
    if (found->flags[i] == flag) return;
    if (!found->flags[i].empty()) continue;
    found->plugins[i] = written;
    found->flags[i] = flag;
    found->chosen[i] = std::move(entry);
    return;
  }
  found->plugins.push_back(written);
  found->flags.push_back(flag);
  found->chosen.push_back(std::move(entry));
}

void AddDefaults(const std::vector<DefaultPlugin>& defaults, Discovery* found) {
  for (const auto& [name, device] : defaults) {
    const auto entry = found->catalog.Find(name);
    if (!entry.ok()) continue;  // AssignRoles says what could fill the role
    const bool fits = std::any_of(found->chosen.begin(), found->chosen.end(),
                                  [&, &device = device](const plugin::PluginEntry& other) {
                                    return other.kind == PluginKind::kOps && other.device == device;
                                  });
    if (!device.empty() && !fits) continue;
    const bool filled = std::any_of(found->chosen.begin(), found->chosen.end(),
                                    [&](const plugin::PluginEntry& other) {
                                      return plugins::FillsRole(other) && other.kind == entry->kind;
                                    });
    if (!filled) Add(name, "default", *entry, found);
  }
}

// Data may name a file as the plugin that it had, but it does not choose the library: the one that
// the user gives, or has, under that name counts.
Result<plugins::PluginFile> FindForData(const ConfigRequest& request,
                                        const plugins::PluginCatalog& catalog,
                                        const std::string& file) {
  const std::string name = plugins::PluginNameOfFile(file);
  const auto given =
      std::find_if(request.plugins.begin(), request.plugins.end(), [&](const std::string& other) {
        return !name.empty() && plugins::PluginNameOfFile(other) == name;
      });
  auto found = catalog.Find(given != request.plugins.end() ? *given : name);
  if (found.ok()) return found;
  return Status::Error(StatusCode::kPlugin,
                       "'%s' is a file, and data may not choose a library: give --plugins %s if "
                       "you trust it",
                       file.c_str(), file.c_str());
}

Status FindChosen(const ConfigRequest& request, const Document& document, Discovery* found) {
  const Cursor root = document.Root();
  const auto* field = root.Field("plugins");
  const std::vector<std::string> names = document.List("plugins");
  if (names.size() > kMostPlugins) {
    return document.Error(root, field, static_cast<int>(kMostPlugins),
                          "names more than " + std::to_string(kMostPlugins) + " plugins");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const auto index = static_cast<int>(i);
    const bool is_path = names[i].find('/') != std::string::npos;
    const bool in_text = document.Origin(root, field, index) != "--set";
    const bool by_data = is_path && in_text && request.is_data;
    const std::string written =
        is_path && !by_data ? plugins::AbsolutePath(names[i], in_text ? request.base_folder : "")
                            : names[i];
    auto entry =
        by_data ? FindForData(request, found->catalog, written) : found->catalog.Find(written);
    if (!entry.ok()) {
      return document.Error(root, field, index, entry.status().message(), StatusCode::kPlugin);
    }
    found->plugins.push_back(by_data ? entry->name : written);
    found->flags.emplace_back();
    found->chosen.push_back(*std::move(entry));
  }
  for (const std::string& name : request.plugins) {
    const auto entry = found->catalog.Find(name);
    if (!entry.ok()) return entry.status().WithContext("--plugins %s", name.c_str());
    Add(name, "--plugins " + name, *entry, found);
  }
  AddDefaults(request.default_plugins, found);
  return {};
}

bool IsAboutPlugins(const std::string& argument) {
  const std::string key = argument.substr(0, argument.find('='));
  return key == "plugins" || key == "plugin_path";
}

}  // namespace

Result<Discovery> Discover(const ConfigRequest& request, std::shared_ptr<const SourceText> source) {
  Problems later;  // told when the schema is known
  ENGINE_ASSIGN_OR_RETURN(Document document,
                          Document::Parse(std::move(source), proto::Config::default_instance(),
                                          Document::UnknownKeys::kSkip, &later));
  for (const std::string& argument : request.overrides) {
    if (IsAboutPlugins(argument)) ENGINE_RETURN_IF_ERROR(document.Override(argument));
  }
  const Cursor root = document.Root();
  const auto* field = root.Field("plugin_path");
  const bool in_text = document.Origin(root, field, 0) != "--set";
  Discovery found;
  std::vector<std::string> folders = request.first_folders;
  for (const std::string& folder : document.List("plugin_path")) {
    if (request.is_data && in_text) break;
    const std::string path = plugins::AbsolutePath(folder, in_text ? request.base_folder : "");
    const Status exists = plugins::CheckFolder(path);
    if (!exists.ok()) {
      return document.Error(root, field, static_cast<int>(found.plugin_path.size()),
                            exists.message());
    }
    found.plugin_path.push_back(path);
    folders.push_back(path);
  }
  folders.insert(folders.end(), request.plugin_folders.begin(), request.plugin_folders.end());
  found.catalog = plugins::PluginCatalog::Scan(folders);
  const Status chosen = FindChosen(request, document, &found);
  if (chosen.ok()) return found;
  later.Add(chosen);
  return later.ToStatus();
}

}  // namespace engine::config
