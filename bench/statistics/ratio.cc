#include "bench/statistics/ratio.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "bench/statistics/summary.h"

namespace engine::bench {
namespace {

constexpr double kMaxPrinted = 1e6;

double LogRatio(const Pair& pair) {
  return std::log(Median(pair.a)) - std::log(Median(pair.b));
}

// Draws the median of a resample, as large as the sample itself, without making one: the median of
// m uniform numbers has the distribution Beta((m + 1) / 2, (m + 1) / 2), and the sample's quantile
// function maps it to the median of m drawn values.
class MedianOfResample {
 public:
  explicit MedianOfResample(std::vector<double> sample)
      : sorted_(std::move(sample)), gamma_(static_cast<double>(sorted_.size() + 1) / 2, 1.0) {
    std::sort(sorted_.begin(), sorted_.end());
  }
  double Draw(std::mt19937_64& random) {
    const double x = gamma_(random), y = gamma_(random);
    const auto index = static_cast<size_t>(x / (x + y) * static_cast<double>(sorted_.size()));
    return sorted_[std::min(index, sorted_.size() - 1)];
  }

 private:
  std::vector<double> sorted_;
  std::gamma_distribution<double> gamma_;
};

// The standard deviation, over resamples, of the mean logarithm.
double BootstrapDeviation(const std::vector<Pair>& pairs, const BootstrapOptions& options) {
  std::vector<MedianOfResample> a, b;
  for (const Pair& pair : pairs) {
    a.emplace_back(pair.a);
    b.emplace_back(pair.b);
  }
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<size_t> any_pair(0, pairs.size() - 1);
  double sum = 0, squares = 0;
  for (int i = 0; i < options.resamples; ++i) {
    double mean = 0;
    for (size_t k = 0; k < pairs.size(); ++k) {
      const size_t pair = any_pair(random);
      mean += std::log(a[pair].Draw(random)) - std::log(b[pair].Draw(random));
    }
    mean /= static_cast<double>(pairs.size());
    sum += mean;
    squares += mean * mean;
  }
  const double n = options.resamples;
  return std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n)));
}

// 1.27, but 1.004 where two digits would hide the difference.
std::string Factor(double value, double estimate) {
  if (value > kMaxPrinted) return "any factor";
  return fmt::format("{:.{}f}", value, std::fabs(estimate - 1) < 0.095 ? 3 : 2);
}

}  // namespace

Ratio EstimateRatio(const std::vector<Pair>& pairs, const BootstrapOptions& options) {
  Ratio ratio;
  double sum = 0;
  for (const Pair& pair : pairs) {
    const double log_ratio = LogRatio(pair);
    ratio.by_pair.push_back(std::exp(log_ratio));
    sum += log_ratio;
  }
  const auto n = static_cast<double>(pairs.size());
  ratio.high = std::numeric_limits<double>::infinity();
  if (pairs.empty()) return ratio;
  ratio.estimate = std::exp(sum / n);
  if (pairs.size() < kMinPairs) return ratio;
  // A bootstrap of n values sees a variance that is too small by (n - 1) / n.
  const double error = BootstrapDeviation(pairs, options) * std::sqrt(n / (n - 1));
  const double reach = boost::math::quantile(boost::math::students_t(n - 1), 0.975) * error;
  ratio.low = ratio.estimate * std::exp(-reach);
  ratio.high = ratio.estimate * std::exp(reach);
  return ratio;
}

Ratio Compare(const Turns& a, const Turns& b, uint64_t seed) {
  std::vector<Pair> pairs;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) pairs.push_back({a[i], b[i]});
  return EstimateRatio(pairs, {.seed = seed});
}

bool HasInterval(const Ratio& ratio) {
  return std::isfinite(ratio.high);
}

Conclusion Judge(const Ratio& ratio) {
  if (ratio.low > 1) return Conclusion::kFaster;
  if (ratio.high < 1) return Conclusion::kSlower;
  return Conclusion::kNotSeparable;
}

std::string ConclusionText(const Ratio& ratio, const std::string& a, const std::string& b) {
  if (!HasInterval(ratio)) {
    return fmt::format("not separable: no interval from {} pairs, take more blocks",
                       ratio.by_pair.size());
  }
  const Conclusion conclusion = Judge(ratio);
  // Of two figures that say the same, the one above 1.
  const bool slower = conclusion == Conclusion::kSlower;
  const double estimate = slower ? 1 / ratio.estimate : ratio.estimate;
  const std::string interval = Factor(slower ? 1 / ratio.high : ratio.low, estimate) + " to " +
                               Factor(slower ? 1 / ratio.low : ratio.high, estimate);
  if (conclusion == Conclusion::kNotSeparable) {
    return "not separable: the speed of " + b + " is " + interval + " times that of " + a +
           " (95 % interval)";
  }
  return b + " is " + Factor(estimate, estimate) + "x " + (slower ? "slower" : "faster") +
         " than " + a + " (95 % interval " + interval + ")";
}

}  // namespace engine::bench
