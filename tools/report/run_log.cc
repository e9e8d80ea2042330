#include "tools/report/run_log.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace engine::report {
namespace {

using Json = nlohmann::json;

void DropFrom(double step, std::map<std::string, Series>* all) {
  for (auto& [name, series] : *all) {
    while (!series.empty() && series.back().first >= step) series.pop_back();
  }
}

// A resumed run repeats the steps behind its checkpoint: what was written of them before goes.
void Begin(int64_t step, RunLog* log) {
  if (step <= log->steps) {
    ++log->resumed;
    for (auto* all : {&log->of_steps, &log->of_evaluations, &log->of_plugins}) {
      DropFrom(static_cast<double>(step), all);
    }
    std::erase_if(log->checkpoints, [&](const auto& one) { return one.first >= step; });
  }
  log->steps = step;
}

void AddNumbers(const Json& line, double step, std::map<std::string, Series>* all) {
  for (const auto& [name, value] : line.items()) {
    if (value.is_number() && name != "step") (*all)[name].emplace_back(step, value.get<double>());
  }
}

void AddStep(const Json& line, RunLog* log) {
  Begin(line.at("step").get<int64_t>(), log);
  const auto step = static_cast<double>(log->steps);
  AddNumbers(line, step, &log->of_steps);
  const double seconds = line.at("seconds").get<double>();
  if (!(seconds > 0)) return;
  log->of_steps["samples_per_second"].emplace_back(step,
                                                   line.at("samples").get<double>() / seconds);
  const Json& waited = line.at("communication_seconds");
  if (waited.is_number()) {
    log->of_steps["exposed"].emplace_back(step, 100 * waited.get<double>() / seconds);
  }
}

void AddLine(const Json& line, RunLog* log) {
  const std::string event = line.at("event").get<std::string>();
  if (event == "step") return AddStep(line, log);
  if (event == "evaluation") {
    return AddNumbers(line, line.at("step").get<double>(), &log->of_evaluations);
  }
  if (event == "checkpoint") {
    log->checkpoints.emplace_back(line.at("step").get<int64_t>(),
                                  line.at("path").get<std::string>());
  } else if (event == "metric" && line.at("value").is_number()) {
    const int64_t step = line.value("step", log->steps);
    log->of_plugins[line.at("name").get<std::string>()].emplace_back(
        static_cast<double>(step), line.at("value").get<double>());
  }
}

}  // namespace

Status ReadOn(const std::string& path, RunLog* log) {
  std::ifstream file(path);
  if (!file) {
    return Status::Error(StatusCode::kMissingInput,
                         "cannot read %s: give the file that output.metrics of the run names",
                         path.c_str());
  }
  file.seekg(log->read_bytes);
  std::string text;
  for (int64_t number = 1; std::getline(file, text); ++number) {
    try {
      if (!text.empty()) AddLine(Json::parse(text), log);
    } catch (const Json::exception&) {
      if (file.peek() == std::ifstream::traits_type::eof() && log->read_bytes > 0) break;
      return Status::Error(StatusCode::kBadData,
                           "%s, line %lld: no metric of a run: give the file that output.metrics "
                           "of the run names",
                           path.c_str(), static_cast<long long>(number));
    }
    log->read_bytes += static_cast<std::streamoff>(text.size()) + 1;
  }
  return {};
}

Result<RunLog> ReadRunLog(const std::string& path) {
  RunLog log;
  ENGINE_RETURN_IF_ERROR(ReadOn(path, &log));
  if (log.steps > 0) return log;
  return Status::Error(StatusCode::kBadData, "%s has no steps: the run had not begun",
                       path.c_str());
}

}  // namespace engine::report
