#include "bench/training/metrics_lines.h"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace engine::bench {

Result<std::vector<double>> ReadLosses(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return Status::Error(StatusCode::kMissingInput, "the run wrote no metrics to %s", path.c_str());
  }
  std::vector<double> losses;
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object()) {
      return Status::Error(StatusCode::kBadData, "%s holds a line that is no JSON object",
                           path.c_str());
    }
    if (line.value("event", "") != "step") continue;
    if (line.value("step", int64_t{0}) != static_cast<int64_t>(losses.size()) + 1) {
      return Status::Error(StatusCode::kBadData, "%s lacks step %zu", path.c_str(),
                           losses.size() + 1);
    }
    // JSON has no NaN; the writer puts null there.
    const auto loss = line.find("loss");
    losses.push_back(loss != line.end() && loss->is_number()
                         ? loss->get<double>()
                         : std::numeric_limits<double>::quiet_NaN());
  }
  return losses;
}

}  // namespace engine::bench
