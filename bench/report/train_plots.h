// The plots of a comparison of training runs, for a page of a given width in pixels.
#pragma once

#include <string>

#include "bench/training/result.h"

namespace engine::bench {

// Each measured step of each side as a point, with box and whiskers.
std::string StepTimePlot(const TrainResult& result, double width, const char* css);
// The median of each run in the order in which they ran.
std::string RunOrderPlot(const TrainResult& result, double width, const char* css);
// The ratio of each pair, and the estimate with its interval.
std::string RatioPlot(const TrainResult& result, double width, const char* css);
// The losses of all runs, one over the other.
std::string LossPlot(const TrainResult& result, double width, const char* css);

}  // namespace engine::bench
