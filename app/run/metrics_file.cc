#include "app/run/metrics_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

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

Result<std::unique_ptr<MetricsFile>> MetricsFile::Open(const std::string& path, Earlier earlier) {
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) {
    return Status::Error(StatusCode::kStorage, "cannot write metrics to %s: %s", path.c_str(),
                         strerror(errno));
  }
  return std::unique_ptr<MetricsFile>(new MetricsFile(file, path, earlier == Earlier::kKeep));
}

MetricsFile::~MetricsFile() {
  std::fclose(file_);
}

// A pipe or a terminal has no earlier content.
bool MetricsFile::Clear() {
  struct stat info {};
  if (fstat(fileno(file_), &info) != 0) return false;
  return !S_ISREG(info.st_mode) || ftruncate(fileno(file_), 0) == 0;
}

Status MetricsFile::WriteLine(const std::string& line) {
  std::lock_guard lock(mutex_);
  const bool cleared = cleared_ || Clear();
  cleared_ = true;
  if (cleared && std::fprintf(file_, "%s\n", line.c_str()) > 0 && std::fflush(file_) == 0)
    return {};
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
