#include "app/run/metrics_file.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

namespace engine::run {
namespace {

// Resident, of this process.
int64_t PeakMemoryBytes() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);  // fails for wrong arguments only
  return usage.ru_maxrss * 1024;
}

}  // namespace

using Json = nlohmann::ordered_json;

MetricsFile::~MetricsFile() {
  if (file_ != nullptr) std::fclose(file_);
}

Status MetricsFile::WriteLine(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (file_ == nullptr) {
    std::error_code ignored;  // no file yet; or a pipe, which has no earlier content
    if (earlier_ == Earlier::kReplace) std::filesystem::resize_file(path_, 0, ignored);
    file_ = std::fopen(path_.c_str(), "ae");
  }
  if (file_ != nullptr && std::fprintf(file_, "%s\n", line.c_str()) > 0 &&
      std::fflush(file_) == 0) {
    return {};
  }
  return Status::Error(StatusCode::kStorage, "cannot write metrics to %s: %s", path_.c_str(),
                       strerror(errno));
}

Status MetricsFile::Write(const train::StepReport& report) {
  Json line = {{"event", "step"},
               {"step", report.step},
               {"epoch", report.epoch},
               {"loss", report.loss},
               {"accuracy", report.accuracy},
               {"learning_rate", report.learning_rate},
               {"samples", report.samples},
               {"seconds", report.seconds},
               {"communication_seconds", nullptr},
               {"peak_memory_bytes", PeakMemoryBytes()}};
  if (report.communication_seconds) line["communication_seconds"] = *report.communication_seconds;
  return WriteLine(line.dump());
}

Status MetricsFile::Write(const train::EvaluationReport& report) {
  Json line = {{"event", "evaluation"},
               {"step", report.step},
               {"loss", report.loss},
               {"targets", report.targets},
               {"seconds", report.seconds}};
  for (const auto& [name, value] : report.metrics) line[name] = value;
  return WriteLine(line.dump());
}

Status MetricsFile::WriteCheckpoint(int64_t step, const std::string& path) {
  return WriteLine(Json{{"event", "checkpoint"}, {"step", step}, {"path", path}}.dump());
}

Status MetricsFile::WritePluginMetric(int64_t step, int32_t rank, std::string_view name,
                                      double value) {
  const Json line = {
      {"event", "metric"}, {"step", step}, {"rank", rank}, {"name", name}, {"value", value}};
  return WriteLine(line.dump());
}

}  // namespace engine::run
