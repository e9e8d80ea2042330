#include <cstdio>
#include <string>

#include "app/cli/commands.h"
#include "app/config/describe.h"
#include "app/launch/log.h"

namespace engine::cli {

int PluginsCommand(const command::PluginFlags& flags, const std::string& name,
                   const command::Environment& environment) {
  const plugins::PluginCatalog catalog =
      plugins::PluginCatalog::Scan(command::PluginFolders(flags, environment));
  if (name.empty()) {
    std::fputs(launch::Printable(config::ListPlugins(catalog)).c_str(), stdout);
    return 0;
  }
  const auto entry = catalog.Find(name);
  if (!entry.ok()) return command::ReportError(entry.status());
  std::fputs(launch::Printable(config::DescribePlugin(*entry)).c_str(), stdout);
  return 0;
}

int ConfigCheckCommand(const command::ConfigFlags& flags, const command::Environment& environment) {
  const auto config = command::LoadConfig(flags, environment);
  if (!config.ok()) return command::ReportError(config.status());
  std::printf("%s: OK\n", flags.file.empty() ? "built-in default" : flags.file.c_str());
  return 0;
}

int ConfigPrintCommand(const command::ConfigFlags& flags, const command::Environment& environment) {
  const auto config = command::LoadConfig(flags, environment);
  if (!config.ok()) return command::ReportError(config.status());
  std::fputs(config->Print(true).c_str(), stdout);
  return 0;
}

}  // namespace engine::cli
