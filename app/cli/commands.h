// The subcommands of `engine`. Flags and environment variables end here: what is below gets values.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/command/command.h"
#include "app/launch/launch.h"
#include "engine/status.h"

namespace engine::cli {

struct RunFlags {
  command::ConfigFlags config;
  launch::LaunchFlags launch;
  std::string trace;  // --trace
  // --resume: the checkpoint to go on from; "auto": the newest there is; empty: from the beginning.
  std::string resume;
  // Of the newest checkpoint that was there before the run.
  std::filesystem::file_time_type earlier = std::filesystem::file_time_type::min();
  bool dry_run = false;           // --dry-run
  bool force = false;             // --force: replace a checkpoint of another run
  std::string bind = "none";      // --bind
  std::string progress = "auto";  // --progress
  bool quiet = false;
  bool verbose = false;
};
struct ServeFlags {
  std::string address;  // HOST:PORT
  int index = 0;
  std::string key_file;
  bool insecure = false;
  int wait_seconds = 30;
  command::PluginFlags plugin;
  bool quiet = false;
  bool verbose = false;
};
struct CheckpointFlags {
  std::string file;
  std::vector<std::string> overrides;
  command::PluginFlags plugin;
  std::string data;  // --data: a block of other data, or a path for the same kind; empty: the same
  std::string split = "held_out";
  launch::LaunchFlags launch;  // of eval
  bool json = false;           // of eval, as the next
  size_t mistakes = 0;
  std::string format = "json";  // these of predict
  std::string out;
  int64_t top = 1;
  bool outputs = false;
  std::string safetensors, onnx;     // these of export
  std::vector<std::string> plugins;  // in the place of those of the run
  std::string batch = "dynamic";
  bool fold = false;
  std::string prompt;   // these of sample
  int64_t count = 300;  // bytes or tokens
  double temperature = 0.8;
  int top_k = 40;
  uint64_t seed = 1;
};

// Each prints its result to standard output and returns the exit code; an error is printed by
// ReportError.
int RunCommand(RunFlags flags, const command::Environment& environment);
int ServeCommand(const ServeFlags& flags, const command::Environment& environment);
int PluginsCommand(const command::PluginFlags& flags, const std::string& name,
                   const command::Environment& environment);
int CheckPluginCommand(const std::string& file);
int NewPluginCommand(const std::string& name, const std::string& kind);
int ConfigCheckCommand(const command::ConfigFlags& flags, const command::Environment& environment);
int ConfigPrintCommand(const command::ConfigFlags& flags, const command::Environment& environment);
int SampleCommand(const CheckpointFlags& flags, const command::Environment& environment);
int EvalCommand(const CheckpointFlags& flags, const command::Environment& environment);
int PredictCommand(const CheckpointFlags& flags, const command::Environment& environment);
int ExportCommand(CheckpointFlags flags, const command::Environment& environment);

}  // namespace engine::cli
