// What a configuration must satisfy beyond its schema.
#pragma once

#include "app/config/document.h"
#include "engine/status.h"

namespace engine::config {

// Ranges of the numbers of engine.proto, what must be given, what excludes what. kConfig with the
// place of the value, or of the block that lacks it.
void CheckDocument(const Document& document, Problems* problems);

}  // namespace engine::config
