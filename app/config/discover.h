// Which plugins a configuration chooses: known before its schema is, because the schema depends on
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/config/document.h"

namespace engine::config {

struct Discovery {
  plugins::PluginCatalog catalog;
  std::vector<std::string> plugin_path;  // of the configuration, absolute
  // The choice, with absolute paths; where an element came from, "--plugins x", "default" or "";
  // its entry.
  std::vector<std::string> plugins, flags;
  std::vector<plugin::PluginEntry> chosen;
};

// Reads `plugins` and `plugin_path` and skips keys that engine.proto does not know; everything else
// in the text is checked against engine.proto already. kConfig, or kPlugin when a plugin is missing
// or broken.
Result<Discovery> Discover(const ConfigRequest& request, std::shared_ptr<const SourceText> source);

}  // namespace engine::config
