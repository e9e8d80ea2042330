#include "app/run/best.h"

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>

namespace engine::run {

train::Judgement Best::Judge(const train::EvaluationReport& report) {
  const std::string& metric = options_.metric;
  const bool rises = metric.ends_with("accuracy") || metric == "auc";
  const auto found = std::ranges::find(report.metrics, metric, &train::Metric::name);
  const double value = metric == "loss"                ? report.loss
                       : found == report.metrics.end() ? NAN
                                                       : found->value;
  const bool once_more = last_ > 0 && report.step == last_;
  last_ = report.step;
  const double gain = value_ ? (rises ? value - *value_ : *value_ - value) : 0;
  const bool gains = std::isfinite(value) && (!value_ || gain > options_.min_delta);
  const bool better = once_more ? step_ == last_ : gains;
  if (!once_more) misses_ = better ? 0 : misses_ + 1;
  if (better) value_ = value;
  if (better) step_ = report.step;
  return {.keep = better, .end = options_.patience > 0 && misses_ >= options_.patience};
}

std::string Best::Describe() const {
  return fmt::format(
      "stopped early: the held-out {} was best, {:.4g}, after step {}, and no better in {} "
      "evaluations "
      "since",
      options_.metric, value_.value_or(0), step_, misses_);
}

std::string Best::Save() const {
  return value_ ? fmt::format("{} {} {} {} {}", *value_, step_, misses_, last_, options_.metric)
                : "";
}

bool Best::Load(const std::string& text) {
  value_.reset();
  step_ = misses_ = last_ = 0;
  if (text.empty()) return true;
  if (!text.ends_with(" " + options_.metric)) return false;
  double value = 0;
  const int read = std::sscanf(text.c_str(), "%lf %" SCNd64 " %" SCNd64 " %" SCNd64, &value, &step_,
                               &misses_, &last_);
  if (read >= 3) value_ = value;
  return true;
}

}  // namespace engine::run
