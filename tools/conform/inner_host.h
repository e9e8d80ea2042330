// The Host of a plugin with others inside of it.
#pragma once

#include "core/plugin/plugin_set.h"

namespace engine::conform {

// A Host like `host` that makes the plugins inside of `choice`; `host` itself where there are none.
// Stays until the process ends, borrowing `host`: nobody says when the object of `choice` is deleted.
Host& OfferInner(const plugin::PluginChoice& choice, Host& host);

}  // namespace engine::conform
