// Metrics as JSON lines, one object per step, evaluation, checkpoint or plugin metric
// (docs/configuration.md).
#pragma once

#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "app/run/metrics.h"

namespace engine::run {

class MetricsFile final : public MetricsSink {
 public:
  enum class Earlier { kReplace, kKeep };

  // The folder of `path` must exist. The first line replaces what an earlier run wrote, so that a
  // run which fails before its first step destroys nothing; or all lines are appended to it.
  explicit MetricsFile(std::string path, Earlier earlier = Earlier::kReplace)
      : path_(std::move(path)), earlier_(earlier) {}
  ~MetricsFile() override;

  Status Write(const train::StepReport& report) override;
  Status Write(const train::EvaluationReport& report) override;
  Status WriteCheckpoint(int64_t step, const std::string& path) override;
  Status WritePluginMetric(int64_t step, int32_t rank, std::string_view name,
                           double value) override;

 private:
  Status WriteLine(const std::string& line);

  const std::string path_;
  const Earlier earlier_;
  std::mutex mutex_;
  std::FILE* file_ = nullptr;  // guarded by mutex_; open once there is a line
};

}  // namespace engine::run
