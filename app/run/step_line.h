// The line that a run shows of its steps: as much of it as fits.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>

#include "core/train/observer.h"

namespace engine::run {

// The loss is that of the step, beside it the mean of the last kMeanSteps. Throughput, the share of
// communication and the time that is left are of wall time, evaluations and checkpoints included, averaged
// with weights that fall by e in kDecaySeconds; they begin with the second step, as plugins set themselves
// up in the first.
class StepLine {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMeanSteps = 20;
  static constexpr double kDecaySeconds = 15;

  // `now`: when the step ended. Every step of a run, in order.
  void Add(const train::StepReport& report, Clock::time_point now);
  // Of the last step. What is longer than `width` characters loses its least important parts.
  std::string Text(size_t width = std::string::npos) const;

 private:
  train::StepReport last_;
  std::deque<double> losses_;
  std::optional<Clock::time_point> end_;  // of the last step
  // Sums of the steps so far, each with its weight.
  double wall_ = 0, steps_ = 0, samples_ = 0, communication_ = 0, seconds_ = 0;
};

}  // namespace engine::run
