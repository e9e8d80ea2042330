// A comparison of training runs in all its forms.
#pragma once

#include <string>

#include "bench/training/result.h"

namespace engine::bench {

// For a terminal of 100 columns. The conclusion is the last line.
std::string TrainText(const TrainResult& result);

// One line per measured step of each run, below a line of names.
std::string TrainCsv(const TrainResult& result);

// Everything.
std::string TrainJson(const TrainResult& result);

// One page that needs nothing but itself: no script, no network, plots as SVG.
std::string TrainHtml(const TrainResult& result);

}  // namespace engine::bench
