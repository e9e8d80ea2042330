// The effective configuration as text.
#pragma once

#include <string>

#include "app/config/document.h"
#include "app/config/schema.h"

namespace engine::config {

enum class PrintForm {
  kText,
  kWithOrigins,  // each value is followed by a comment on where it came from
  // A line "train.steps: 100" for each value that all ranks must have alike: not what describes the host of
  // a rank, and not the path of a file that rank 0 writes or whose contents are compared elsewhere.
  kCompared,
};

// Every value that is set or has a default, in the order of the schema, as a text that parses to
// the same configuration. Of the plugins that are not chosen only what is set.
std::string PrintDocument(const Document& document, const Schema& schema, PrintForm form);

}  // namespace engine::config
