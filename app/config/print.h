// The effective configuration as text.
#pragma once

#include <string>

#include "app/config/document.h"
#include "app/config/schema.h"

namespace engine::config {

// Every value that is set or has a default, in the order of the schema, as a text that parses to
// the same configuration. Of the plugins that are not chosen only what is set. With `origins` each
// value is followed by a comment on where it came from.
std::string PrintDocument(const Document& document, const Schema& schema, bool origins);

}  // namespace engine::config
