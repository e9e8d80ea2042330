// A page about one run: curves, figures, checkpoints.
#pragma once

#include <string>

#include "tools/report/run_log.h"

namespace engine::report {

// One HTML file that loads nothing else. `title`: the name of the run.
std::string RunPage(const RunLog& log, const std::string& title);

}  // namespace engine::report
