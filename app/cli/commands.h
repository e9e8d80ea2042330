// The subcommands of `engine`. Flags and environment variables end here: what is below gets values.
#pragma once

#include <string>
#include <vector>

#include "app/command/command.h"
#include "app/launch/launch.h"
#include "engine/status.h"

namespace engine {

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

}  // namespace engine
