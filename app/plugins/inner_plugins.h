// What a plugin makes inside of itself: communicators and schedulers that its options name.
#pragma once

#include <memory>

#include "core/plugin/plugin_host.h"

namespace engine::plugins {

// PluginEntry::make_inner.
std::shared_ptr<InnerPlugins> MakeInner(const plugin::PluginChoice& outer,
                                        plugin::PluginHost& host);

}  // namespace engine::plugins
