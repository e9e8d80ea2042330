#include <cstdio>
#include <string>
#include <vector>

#include "app/author/new_project.h"
#include "app/cli/commands.h"
#include "app/config/describe.h"
#include "app/config/schema.h"
#include "app/launch/exit_code.h"
#include "app/launch/log.h"

namespace engine::cli {

int PluginsCommand(const command::PluginFlags& flags, const std::string& name,
                   const command::Environment& environment) {
  const auto folders = command::PluginFolders(flags, environment);
  if (!folders.ok()) return command::ReportError(folders.status());
  const plugins::PluginCatalog catalog = plugins::PluginCatalog::Scan(*folders);
  if (name.empty()) {
    std::fputs(launch::Printable(config::ListPlugins(catalog)).c_str(), stdout);
    return 0;
  }
  const auto entry = catalog.Find(name);
  if (!entry.ok()) return command::ReportError(entry.status());
  std::fputs(launch::Printable(config::DescribePlugin(*entry)).c_str(), stdout);
  return 0;
}

int CheckPluginCommand(const std::string& file) {
  std::vector<Status> problems;
  const plugins::PluginFile entry = plugins::CheckPluginFile(file, &problems);
  const Status name = config::CheckNotAKey(entry.name).WithContext("%s", entry.path.c_str());
  if (!name.ok()) problems.push_back(name);
  for (const Status& problem : problems) (void)command::ReportError(problem);
  if (!problems.empty()) return launch::ExitCode(StatusCode::kPlugin);
  const std::string line = entry.path + ": " + Name(entry.kind) + " '" + entry.name + "' " +
                           entry.version + ", " + entry.compiler + ": OK\n";
  std::fputs(launch::Printable(line).c_str(), stdout);
  return 0;
}

int NewPluginCommand(const std::string& name, const std::string& kind) {
  const Status free = config::CheckNotAKey(name);
  const Status written = free.ok() ? author::WriteProject(name, kind) : free;
  if (!written.ok()) return command::ReportError(written);
  std::printf("wrote the folder %s: its README.md says how to build, check and use it\n",
              name.c_str());
  return 0;
}

int ConfigPrintCommand(const command::ConfigFlags& flags, const command::Environment& environment) {
  const auto config = command::LoadConfig(flags, environment);
  if (!config.ok()) return command::ReportError(config.status());
  std::fputs(config->Print(true).c_str(), stdout);
  return 0;
}

}  // namespace engine::cli
