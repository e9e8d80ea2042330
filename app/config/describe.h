// What `engine plugins` prints.
#pragma once

#include <string>

#include "core/plugin/catalog.h"

namespace engine::config {

// A table of all plugins found, then those that cannot be loaded and why, then those that are
// shadowed and by which file.
std::string ListPlugins(const plugin::PluginCatalog& catalog);

// One plugin with its options, and its ops with their attributes.
std::string DescribePlugin(const plugin::PluginEntry& entry);

}  // namespace engine::config
