#include "bench/report/run_log.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace engine::bench {
namespace {

using Json = nlohmann::json;

// False if the object is no event; throws where a value is of another type.
bool AddEvent(const Json& event, RunLog* log) {
  const std::string kind = event.value("event", "");
  const int64_t step = event.value("step", int64_t{0});
  if (kind == "checkpoint") {
    log->checkpoints[step] = event.value("path", "");
  } else if (kind == "metric") {
    log->metrics[event.value("name", "")][step] = event.value("value", 0.0);
  } else if (kind == "step" || kind == "evaluation") {
    auto& curves = kind == "step" ? log->steps : log->evaluations;
    for (const auto& [key, value] : event.items()) {
      if (value.is_number() && key != "step") curves[key][step] = value;
    }
  } else {
    return false;
  }
  return true;
}

}  // namespace

Result<RunLog> ReadRunLog(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return Status::Error(StatusCode::kMissingInput, "cannot read metrics from %s", path.c_str());
  }
  RunLog log;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_discarded() && file.eof()) break;  // a run was killed while it wrote
    try {
      if (event.is_object() && AddEvent(event, &log)) continue;
    } catch (const Json::exception&) {
      // As something else.
    }
    return Status::Error(StatusCode::kBadData, "%s:%lld: no event of a run (output.metrics)",
                         path.c_str(), static_cast<long long>(number));
  }
  if (!log.steps.empty()) return log;
  return Status::Error(StatusCode::kBadData, "%s: there are no steps in it", path.c_str());
}

}  // namespace engine::bench
