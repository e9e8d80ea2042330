// What the dynamic linker would say of a library, asked in processes of its own.
#pragma once

#include <string>

#include "core/plugin/plugin_set.h"
#include "engine/status.h"

namespace engine::plugins {

// kPlugin, a clause: the libraries that `file` needs, itself or through others, and that are not
// found. Runs no code of any of them.
Status CheckDependencies(const std::string& file);

// Loads the library as a run does, constructors and all. kPlugin, a clause: what the dynamic linker
// says (of a symbol that nobody defines, for one), or how that process ended.
Status TryToLoad(const plugin::PluginEntry& entry);

}  // namespace engine::plugins
