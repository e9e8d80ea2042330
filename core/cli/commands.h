// The subcommands of `engine`. Flags and environment variables end here: what is below gets values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/launch/launch.h"
#include "engine/status.h"

namespace CLI {
class App;
}

namespace engine {

// The process as main() found it.
struct Environment {
  std::map<std::string, std::string> variables;
  std::string binary_folder;  // where this executable lies
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
struct RunFlags {
  ConfigFlags config;
  LaunchFlags launch;
  std::string trace;   // --trace
  std::string resume;  // --resume: the checkpoint to go on from; empty: from the beginning
  bool quiet = false;
  bool verbose = false;
};
struct ServeFlags {
  std::string address;  // HOST:PORT
  int index = 0;
  std::string key_file;
  int wait_seconds = 30;
  PluginFlags plugin;
  bool quiet = false;
  bool verbose = false;
};
struct CheckpointFlags {
  std::string file;
  std::vector<std::string> overrides;
  PluginFlags plugin;
  std::string prompt;
  int64_t bytes = 300;
  double temperature = 0.8;
  int top_k = 40;
  uint64_t seed = 1;
};

// --plugin-path, then ENGINE_PLUGIN_PATH, then beside the binary, then the install directory.
std::vector<std::string> PluginFolders(const PluginFlags& flags, const Environment& environment);

// What a run of that shape uses if nobody names a communicator.
std::vector<DefaultPlugin> DefaultCommunicators(const RankInfo& shape);

// The configuration of `flags`, or the built-in default, with `communicator` if it names none.
Result<Config> LoadConfig(
    const ConfigFlags& flags, const Environment& environment,
    const std::vector<DefaultPlugin>& communicators = DefaultCommunicators({}));

// Each prints its result to standard output and returns the exit code; an error is printed by
// ReportError.
int RunCommand(const RunFlags& flags, const Environment& environment);
int ServeCommand(const ServeFlags& flags, const Environment& environment);
int PluginsCommand(const PluginFlags& flags, const std::string& name,
                   const Environment& environment);
int ConfigCheckCommand(const ConfigFlags& flags, const Environment& environment);
int ConfigPrintCommand(const ConfigFlags& flags, const Environment& environment);
int SampleCommand(const CheckpointFlags& flags, const Environment& environment);
int EvalCommand(const CheckpointFlags& flags, const Environment& environment);

// `engine trace summary`; its exit code goes to *exit_code.
void AddTraceCommand(CLI::App& app, int* exit_code);

// `engine bench train` and `engine bench collectives`; the exit code goes to *exit_code.
// `environment` is borrowed.
void AddBenchCommand(CLI::App& app, const Environment& environment, int* exit_code);

// `engine simulate`; its exit code goes to *exit_code. `environment` is borrowed.
void AddSimulateCommand(CLI::App& app, const Environment& environment, int* exit_code);

// Prints "engine: MESSAGE" to standard error, once, and returns the exit code of its kind.
int ReportError(const Status& status);

}  // namespace engine
