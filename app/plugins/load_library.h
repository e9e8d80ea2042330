#pragma once

#include "core/plugin/plugin_set.h"
#include "engine/status.h"

namespace engine::plugins {

// PluginEntry::load.
Result<CreateFunction> LoadLibrary(const plugin::PluginEntry& entry);

}  // namespace engine::plugins
