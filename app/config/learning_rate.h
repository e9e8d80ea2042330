// train.learning_rate as a function of the step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace engine::config {

struct LearningRate {
  enum class Unit { kSteps, kEpochs, kRuns };
  enum class Curve { kLinear, kCosine, kExponential, kStep };
  struct Point {
    double at = 0;
    Unit unit = Unit::kSteps;
    double factor = 1;             // of `base`
    Curve curve = Curve::kLinear;  // from the point before to this one
  };
  double base = 0.001;
  std::vector<Point> points;  // none: the rate is `base`

  static double StepOf(const Point& point, int64_t steps, int64_t steps_per_epoch) {
    return point.unit == Unit::kSteps    ? point.at
           : point.unit == Unit::kEpochs ? point.at * static_cast<double>(steps_per_epoch)
                                         : point.at * static_cast<double>(steps);
  }

  // The rate of step `step` (1 .. steps). What counts is the first point that does not lie before it, so
  // that one which comes too early (a warm-up longer than the run) changes nothing else.
  double operator()(int64_t step, int64_t steps, int64_t steps_per_epoch) const {
    const auto place = [&](const Point& point) { return StepOf(point, steps, steps_per_epoch); };
    const auto now = static_cast<double>(step);
    const auto to =
        std::ranges::find_if(points, [&](const Point& point) { return now < place(point); });
    if (to == points.end()) return points.empty() ? base : base * points.back().factor;
    if (to == points.begin()) return base * to->factor;
    const Point& from = *(to - 1);
    return base * Between(from.factor, *to, (now - place(from)) / (place(*to) - place(from)));
  }

 private:
  // `progress` is in [0, 1). The cosine is half of one (Loshchilov and Hutter 2017).
  static double Between(double from, const Point& to, double progress) {
    switch (to.curve) {
      case Curve::kLinear:
        return from + (to.factor - from) * progress;
      case Curve::kCosine:
        return to.factor + (from - to.factor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
      case Curve::kExponential:
        return from * std::pow(to.factor / from, progress);
      case Curve::kStep:
        break;
    }
    return from;
  }
};

}  // namespace engine::config
