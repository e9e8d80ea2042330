// What `engine plugins` prints.
#pragma once

#include <string>

#include "app/plugins/catalog.h"

namespace engine::config {

// A table of all plugins found, then those that cannot be loaded and why, then those that are
// shadowed and by which file.
std::string ListPlugins(const plugins::PluginCatalog& catalog);

// One plugin with its options, and its ops with their attributes.
std::string DescribePlugin(const plugins::PluginFile& entry);

}  // namespace engine::config
