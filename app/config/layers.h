// Options of plugins, attributes of ops and layers of models, read from a document.
#pragma once

#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/config/discover.h"
#include "app/config/document.h"
#include "app/config/schema.h"

namespace engine::config {

// Every option of the chosen plugins, in their order, and of the plugins that these options name,
// which are chosen then, too. What is wrong with values are `problems`.
Result<std::vector<plugin::PluginChoice>> ReadPluginOptions(const Document& document,
                                                            const Discovery& found, Schema& schema,
                                                            Problems* problems);

// The plugin that a block of `block`, "data" or "model", chooses; none where CheckDocument has said that
// it chooses none.
plugin::PluginChoice ReadChoice(const Document& document, const Schema& schema,
                                const std::string& block, Problems* problems);

}  // namespace engine::config
