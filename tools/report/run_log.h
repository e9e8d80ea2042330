// What a run wrote to output.metrics (docs/configuration.md), as series over its steps.
#pragma once

#include <cstdint>
#include <ios>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/status.h"

namespace engine::report {

using Series = std::vector<std::pair<double, double>>;  // step, value

struct RunLog {
  int64_t steps = 0;    // the last one
  int64_t resumed = 0;  // how often steps were repeated after a resume
  // By the name of the field: those of steps ("loss", "learning_rate", "samples_per_second",
  // "exposed", ...), of evaluations and of plugin metrics, whose step is that of the line before.
  std::map<std::string, Series> of_steps, of_evaluations, of_plugins;
  std::vector<std::pair<int64_t, std::string>> checkpoints;  // step, path
  std::streamoff read_bytes = 0;                             // of the file
};

// kMissingInput when there is no such file, kBadData with the line that is no metric, or when there are
// no steps. A last line that is cut off, as a killed run leaves it, is left out. After a resume the
// steps that were repeated count once, as they were repeated.
Result<RunLog> ReadRunLog(const std::string& path);
// Adds what a run has written since; there may be no steps yet.
Status ReadOn(const std::string& path, RunLog* log);

}  // namespace engine::report
