// A page about one run: curves, figures, checkpoints.
#pragma once

#include <string>

#include "tools/report/run_log.h"

namespace engine::report {

// One HTML file that loads nothing else. `title`: the name of the run; `evaluation`: what
// `engine eval --json` printed, for its classes and mistakes, or nothing. kBadData when it is
// something else.
Result<std::string> RunPage(const RunLog& log, const std::string& title,
                            const std::string& evaluation);

}  // namespace engine::report
