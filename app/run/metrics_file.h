// Metrics as JSON lines, one object per step, evaluation, checkpoint or plugin metric
// (docs/configuration.md).
#pragma once

#include <cstdio>
#include <memory>
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
  // kStorage when it cannot be written.
  static Result<std::unique_ptr<MetricsFile>> Open(const std::string& path,
                                                   Earlier earlier = Earlier::kReplace);
  ~MetricsFile() override;

  Status Write(const train::StepReport& report) override;
  Status Write(const train::EvaluationReport& report) override;
  Status WriteCheckpoint(int64_t step, const std::string& path) override;
  Status WritePluginMetric(int64_t step, int32_t rank, std::string_view name,
                           double value) override;

 private:
  MetricsFile(std::FILE* file, std::string path, bool cleared)
      : file_(file), cleared_(cleared), path_(std::move(path)) {}
  Status WriteLine(const std::string& line);
  bool Clear();

  std::mutex mutex_;
  std::FILE* file_;  // guarded by mutex_
  bool cleared_;     // guarded by mutex_; whether earlier content is gone, as far as it has to go
  const std::string path_;
};

}  // namespace engine::run
