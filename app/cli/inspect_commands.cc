#include <cstdio>

#include "app/cli/commands.h"
#include "app/config/describe.h"

namespace engine {

int PluginsCommand(const PluginFlags& flags, const std::string& name,
                   const Environment& environment) {
  const PluginCatalog catalog = PluginCatalog::Scan(PluginFolders(flags, environment));
  if (name.empty()) {
    std::fputs(ListPlugins(catalog).c_str(), stdout);
    return 0;
  }
  const auto entry = catalog.Find(name);
  if (!entry.ok()) return ReportError(entry.status());
  std::fputs(DescribePlugin(*entry).c_str(), stdout);
  return 0;
}

int ConfigCheckCommand(const ConfigFlags& flags, const Environment& environment) {
  const auto config = LoadConfig(flags, environment);
  if (!config.ok()) return ReportError(config.status());
  std::printf("%s: OK\n", flags.file.empty() ? "built-in default" : flags.file.c_str());
  return 0;
}

int ConfigPrintCommand(const ConfigFlags& flags, const Environment& environment) {
  const auto config = LoadConfig(flags, environment);
  if (!config.ok()) return ReportError(config.status());
  std::fputs(config->Print(true).c_str(), stdout);
  return 0;
}

}  // namespace engine
