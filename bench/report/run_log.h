// What a run has written of itself (output.metrics), and a page that shows it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/status.h"

namespace engine::bench {

struct RunLog {
  using Curve = std::map<int64_t, double>;  // by step; of steps that came twice the later counts
  std::map<std::string, Curve> steps;       // the numbers of "step" events by their keys
  std::map<std::string, Curve> evaluations;
  std::map<std::string, Curve> metrics;  // of plugins
  std::map<int64_t, std::string> checkpoints;
};

// kMissingInput; kBadData with the line that is no event. A last line that is cut off is left out.
Result<RunLog> ReadRunLog(const std::string& path);

// A whole page, which needs no other file. `evaluation`: what `engine eval --json` printed, or empty;
// kBadData when it is something else.
Result<std::string> RunHtml(const RunLog& log, const std::string& title,
                            const std::string& evaluation);

}  // namespace engine::bench
