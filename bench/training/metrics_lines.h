// The losses that a run wrote (docs/configuration.md).
#pragma once

#include <string>
#include <vector>

#include "engine/status.h"

namespace engine::bench {

// Of each step, from the first. kMissingInput when there is no such file; kBadData when a line is
// no JSON object or a step is missing.
Result<std::vector<double>> ReadLosses(const std::string& path);

}  // namespace engine::bench
