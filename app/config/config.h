// The effective configuration of a run: defaults, file, command line, in rising order of strength,
// checked against the schema and against what the plugins publish, before any plugin is loaded.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/plugins/catalog.h"
#include "app/plugins/roles.h"
#include "core/train/run_config.h"
#include "engine/status.h"

namespace engine::config {

// The files that a run writes, and the text that it shows.
struct OutputOptions {
  std::string checkpoint;  // empty: none is written; so are the others
  int64_t keep_checkpoints = 1;
  std::string best_checkpoint, metrics, tensorboard, trace;
  std::vector<std::string> dropped;  // keys of the above that ConfigRequest::is_data had
  int64_t sample_bytes = 0;
};

// Where the parameters of a new run come from (docs/weights.md).
struct InitRule {
  std::string from, to;  // a regular expression, and what is put in place of what it matches
  bool transpose = false;
  bool crop = false;
};
struct InitOptions {
  std::string from;  // a file; empty: initial values are the model's own
  std::vector<InitRule> rules;
  std::vector<std::string> allow_missing;  // regular expressions
};

// train.early_stopping: which evaluations are better, and how many without a better one end a run.
struct BestOptions {
  int64_t patience = 0;  // 0: no number of them
  double min_delta = 0;
  std::string metric = "loss";
};

struct DefaultPlugin {
  std::string name;
  std::string device;  // only where the ops run on it; empty: anywhere
};

inline constexpr size_t kMaxConfigBytes = 16 << 20;

struct ConfigRequest {
  std::string text;    // content of the file
  std::string origin;  // its name for messages; "built-in default" for the built-in
  // The text stands in a checkpoint or comes from another process. Then it chooses plugins by name
  // alone, among those that the user has, and no file to write: kPlugin names a plugin by path.
  bool is_data = false;
  // What plugins and folders of plugins in the text are relative to; empty: the current directory,
  // as for all other files and for everything in `overrides` and `plugins`.
  std::string base_folder;
  std::vector<std::string> overrides;  // --set: "train.steps=100", "adamw.beta1=0.8"
  // --plugins: each replaces the plugin of its role; hooks and ops without a device are appended.
  std::vector<std::string> plugins;
  // For roles that nothing above fills, the first that fits; those that no folder has are passed
  // over.
  std::vector<DefaultPlugin> default_plugins;
  // Folders that are searched for plugins, in this order: before those of the configuration itself
  // (--plugin-path) and after them (ENGINE_PLUGIN_PATH, beside the binary, the install directory).
  std::vector<std::string> first_folders, plugin_folders;
};

// A configuration that has been checked.
class Config {
 public:
  // kConfig: "FILE:LINE:COLUMN: sentence", the source line and a caret, the nearest right name; for
  // a key or value of an override "--set KEY=VALUE: sentence". kPlugin when a chosen plugin is
  // missing or broken, or when the chosen ones do not fill each role once. Defaults of plugin
  // options and attributes are filled in.
  static Result<Config> Load(const ConfigRequest& request);

  const train::RunConfig& run() const { return run_; }
  const OutputOptions& output() const { return output_; }
  const InitOptions& init() const { return init_; }
  const BestOptions& best() const { return best_; }
  const plugins::PluginCatalog& catalog() const { return *catalog_; }
  const plugin::PluginSelection& plugins() const { return run_.plugins; }

  // The same with so many samples in a step over all ranks.
  Config WithGlobalBatch(int64_t samples) const;

  // The same in a process of the run, on a host.
  Config OnHost(const plugins::HostNetwork& network) const;

  // The same of a run of `ranks` ranks that shall survive losses when so many are `left`: the global
  // batch stays, in more micro-batches where a rank would compute more at once.
  Config SurvivingLosses(int32_t ranks, int32_t left) const;

  // What all ranks must have alike, a line "key: value" each.
  const std::string& compared() const { return compared_; }

  // The whole configuration as a text that Load accepts and that gives the same configuration; with
  // `with_origins` each line ends in a comment that says where its value came from: "default",
  // "FILE:LINE", "--set", "--plugins".
  std::string Print(bool with_origins) const {
    return with_origins ? printed_with_origins_ : run_.text;
  }

 private:
  Config() = default;

  std::shared_ptr<const plugins::PluginCatalog> catalog_;
  train::RunConfig run_;
  OutputOptions output_;
  InitOptions init_;
  BestOptions best_;
  std::string printed_with_origins_, compared_;
};

}  // namespace engine::config
