#include "app/run/step_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace engine::run {
namespace {

struct Field {
  int rank;  // the larger one goes first
  std::string text;
};

std::string Duration(double seconds) {
  const auto total = static_cast<int64_t>(seconds + 0.5);
  if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

std::string JoinThatFits(std::vector<Field> fields, size_t width) {
  for (;;) {
    std::string line;
    for (const Field& field : fields) line += (line.empty() ? "" : "  ") + field.text;
    if (line.size() <= width || fields.size() == 1) return line.substr(0, width);
    fields.erase(std::ranges::max_element(fields, {}, &Field::rank));
  }
}

}  // namespace

void StepLine::Add(const train::StepReport& report, Clock::time_point now) {
  last_ = report;
  losses_.push_back(report.loss);
  if (losses_.size() > kMeanSteps) losses_.pop_front();
  const auto before = std::exchange(end_, now);
  if (!before) return;
  const double wall = std::chrono::duration<double>(now - *before).count();
  const double weight = std::exp(-wall / kDecaySeconds);
  for (double* sum : {&wall_, &steps_, &samples_, &communication_, &seconds_}) *sum *= weight;
  wall_ += wall;
  steps_ += 1;
  samples_ += static_cast<double>(report.samples);
  communication_ += report.communication_seconds.value_or(0);
  seconds_ += report.seconds;
}

std::string StepLine::Text(size_t width) const {
  const double mean = std::accumulate(losses_.begin(), losses_.end(), 0.0) /
                      static_cast<double>(std::max<size_t>(losses_.size(), 1));
  std::vector<Field> fields = {{0, fmt::format("step {:>{}}/{}", last_.step,
                                               std::to_string(last_.steps).size(), last_.steps)},
                               {1, fmt::format("loss {:.4f}", last_.loss)},
                               {4, fmt::format("mean{} {:.4f}", kMeanSteps, mean)}};
  const double wall = std::max(wall_, 1e-9);
  if (steps_ > 0) fields.push_back({3, fmt::format("{:.0f} samples/s", samples_ / wall)});
  if (steps_ > 0 && last_.communication_seconds) {
    const double share = communication_ / std::max(seconds_, 1e-9);
    fields.push_back({7, fmt::format("comm {:.0f} %", 100 * share)});
  }
  fields.push_back({5, fmt::format("lr {:.2e}", last_.learning_rate)});
  fields.push_back({6, fmt::format("epoch {:.2f}", last_.epoch)});
  if (steps_ > 0) {
    const double left = wall / steps_ * static_cast<double>(last_.steps - last_.step);
    fields.push_back({2, "ETA " + Duration(left)});
  }
  return JoinThatFits(std::move(fields), width);
}

}  // namespace engine::run
