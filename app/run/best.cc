#include "app/run/best.h"

#include <fmt/format.h>

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "app/plugins/words.h"

namespace engine::run {
namespace {

std::vector<train::Metric> FiguresOf(const train::EvaluationReport& report) {
  std::vector<train::Metric> figures = report.metrics;
  figures.insert(figures.begin(), {"loss", report.loss});
  return figures;
}

}  // namespace

Status Best::OnEvaluation(const train::EvaluationReport& report) {
  last_ = report;
  return observer_.OnEvaluation(report);
}

Result<train::Judgement> Best::Judge() {
  const std::string& metric = options_.metric;
  const bool rises = metric.ends_with("accuracy") || metric == "auc";
  std::vector<std::string> names;
  for (const auto& [name, value] : FiguresOf(last_)) {
    names.push_back(name);
    if (name != metric) continue;
    const double gain = value_ ? (rises ? value - *value_ : *value_ - value) : 0;
    const bool better = std::isfinite(value) && (!value_ || gain > options_.min_delta);
    misses_ = better ? 0 : misses_ + 1;
    if (better) value_ = value;
    if (better) step_ = last_.step;
    return train::Judgement{.keep = better, .end = IsOver()};
  }
  // It was there before: not every evaluation can give it (an area of one class alone).
  if (value_) {
    ++misses_;
    return train::Judgement{.keep = false, .end = IsOver()};
  }
  return Status::Error(StatusCode::kConfig,
                       "train.early_stopping.metric: the evaluations give no '%s'; they give %s",
                       metric.c_str(), plugins::Join(names).c_str());
}

bool Best::IsOver() const {
  return options_.patience > 0 && misses_ >= options_.patience;
}

std::string Best::Describe() const {
  return fmt::format(
      "stopped early: the held-out {} was best, {:.4g}, after step {}, and no better in {} "
      "evaluations "
      "since",
      options_.metric, value_.value_or(0), step_, misses_);
}

std::string Best::Save() const {
  return value_ ? fmt::format("{} {} {}", *value_, step_, misses_) : "";
}

void Best::Load(const std::string& text) {
  double value = 0;
  if (std::sscanf(text.c_str(), "%lf %" SCNd64 " %" SCNd64, &value, &step_, &misses_) == 3) {
    value_ = value;
  }
}

}  // namespace engine::run
