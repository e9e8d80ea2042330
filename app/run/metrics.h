// Where the figures of a run go, besides the terminal.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/train/observer.h"

namespace engine::run {

// Each hands what it writes to the system before it returns, so that a killed run keeps its figures.
// kStorage.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual Status Write(const train::StepReport& report) = 0;
  virtual Status Write(const train::EvaluationReport& report) = 0;
  virtual Status WriteCheckpoint(int64_t /*step*/, const std::string& /*path*/) { return {}; }
  // Told in the step after `step`, the last one that was reported, or in the end of that. [any-thread]
  virtual Status WritePluginMetric(int64_t step, int32_t rank, std::string_view name,
                                   double value) = 0;
};

using MetricsSinks = std::vector<std::unique_ptr<MetricsSink>>;

}  // namespace engine::run
