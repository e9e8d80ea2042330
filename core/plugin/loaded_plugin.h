// A plugin's library in memory.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core/plugin/catalog.h"
#include "engine/host.h"
#include "engine/options.h"
#include "engine/plugin.h"
#include "engine/status.h"

namespace engine::plugin {

// Never unloaded while the process lives (docs/plugin_abi.md says why).
class LoadedPlugin {
 public:
  // Through Boost.DLL with RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE; checks that what was loaded is
  // what the entry described. kPlugin names file and cause.
  static Result<std::shared_ptr<LoadedPlugin>> Load(const PluginEntry& entry);
  LoadedPlugin(CreateFunction create, std::string name) : create_(create), name_(std::move(name)) {}
  // kPlugin or the plugin's own error, with its name in front.
  Result<std::unique_ptr<Object>> Create(Host& host, const Options& options) const;

 private:
  const CreateFunction create_;
  const std::string name_;
};

}  // namespace engine::plugin
