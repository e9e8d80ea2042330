// What the subcommands of `engine` share. Flags and environment variables end here: what is below
// gets values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/launch/launch.h"
#include "engine/host.h"
#include "engine/status.h"

namespace CLI {
class App;
}

namespace engine::command {

// The process as main() found it.
struct Environment {
  std::map<std::string, std::string> variables;
  std::string binary;         // path of this executable
  std::string binary_folder;  // where it lies
};

// Flags that several subcommands share.
struct PluginFlags {
  std::vector<std::string> folders;  // --plugin-path
};
struct ConfigFlags {
  std::string file;                    // empty: the built-in default
  std::vector<std::string> plugins;    // --plugins
  std::vector<std::string> overrides;  // --set
  PluginFlags plugin;
};

// A flag that takes a list of plugins, and flags that can be repeated: KEY=VALUE, and folders to
// search for plugins first.
void AddPlugins(CLI::App* app, const std::string& flag, std::vector<std::string>* plugins,
                const std::string& help);
void AddOverrides(CLI::App* app, const std::string& flag, std::vector<std::string>* overrides,
                  const std::string& help);
void AddPluginFolders(
    CLI::App* app, const std::string& flag, std::vector<std::string>* folders,
    const std::string& help = "Folder to search for plugins before all others; can be repeated");

// --rendezvous and --launcher.
void AddLauncher(CLI::App* app, launch::LaunchFlags* flags);
// --key-file and --insecure: who may join over a network.
void AddAccessFlags(CLI::App* app, std::string* key_file, bool* insecure);

// --plugin-path, then ENGINE_PLUGIN_PATH, then those that came with the engine: beside the binary and
// the install directory. kConfig when --plugin-path names no folder.
Result<std::vector<std::string>> PluginFolders(const PluginFlags& flags,
                                               const Environment& environment);

// The plugins of a run that hide another file of their name, a sentence of each. Where a plugin that
// came with the engine is used there is nothing to say.
std::vector<std::string> ShadowNotices(const config::Config& config,
                                       const Environment& environment);

// What a run of that shape uses if nobody names a communicator.
std::vector<config::DefaultPlugin> DefaultCommunicators(const RankInfo& shape);

// What `member` tells its communicator of its host: the interface that ENGINE_SOCKET_IFNAME names, or one that
// those variables name by which Gloo and NCCL are told; and launch::AddressOf. In the body of a member.
Result<plugins::HostNetwork> NetworkOf(const Environment& environment, base::RankContext& member);

// `request` with the folders of PluginFolders: those of `flags` before its own, the others after them.
Result<config::Config> LoadConfig(config::ConfigRequest request, const PluginFlags& flags,
                                  const Environment& environment);
// The configuration of `flags`, or the built-in default, with `communicator` if it names none.
Result<config::Config> LoadConfig(
    const ConfigFlags& flags, const Environment& environment,
    const std::vector<config::DefaultPlugin>& communicators = DefaultCommunicators({}));

// Makes `folder` and finds out whether files can be written into it, before hours of work. kStorage.
Status PrepareFolder(const std::string& folder);

// A run keeps signals back to finish its step. For a thread of one that has nothing to finish: the first one
// ends the process.
void EndAtFirstSignal();

// Prints "engine: MESSAGE" to standard error, once, and returns the exit code of its kind; OK prints
// nothing and is 0.
int ReportError(const Status& status);
// The same of a run, whose exit code it returns; ends the process at once when threads of it hang. Who
// failed is not said where there is but one member (`alone`).
int ReportOutcome(const launch::LaunchOutcome& outcome, bool alone = false);

}  // namespace engine::command
