#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/report/facts.h"
#include "bench/report/train_report.h"

namespace engine::bench {
namespace {

constexpr int kBarColumns = 40;
constexpr size_t kNameColumns = 42;

// p10 to p90 as a bar, the median as a mark, on an axis from `low` to `high`.
std::string Bar(const Summary& steps, double low, double high) {
  const auto column = [&](double value) {
    const double place = (value - low) / std::max(high - low, 1e-12) * (kBarColumns - 1);
    return std::clamp(static_cast<int>(std::lround(place)), 0, kBarColumns - 1);
  };
  std::string bar;
  for (int i = 0; i < kBarColumns; ++i) {
    if (i == column(steps.median)) {
      bar += "█";
    } else {
      bar += i >= column(steps.p10) && i <= column(steps.p90) ? "▒" : "·";
    }
  }
  return bar;
}

std::string SideLines(const TrainResult& result) {
  double low = INFINITY, high = 0;
  for (const SideId side : SidesOf(result)) {
    low = std::min(low, result.steps[static_cast<int>(side)].p10);
    high = std::max(high, result.steps[static_cast<int>(side)].p90);
  }
  std::string text = fmt::format("{:<4}  {:>10} {:>10} {:>10} {:>10}   {}\n", "ms", "median", "p10",
                                 "p90", "mean", "▒ p10 to p90, █ median");
  for (const SideId side : SidesOf(result)) {
    const Summary& steps = result.steps[static_cast<int>(side)];
    text += fmt::format("{:<4}  {:10.3f} {:10.3f} {:10.3f} {:10.3f}   {}\n", Name(side),
                        1e3 * steps.median, 1e3 * steps.p10, 1e3 * steps.p90, 1e3 * steps.mean,
                        Bar(steps, low, high));
  }
  return text;
}

std::string FactLines(const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts) {
    text += fact.first +
            std::string(kNameColumns - std::min(kNameColumns - 1, fact.first.size()), ' ') +
            fact.second + "\n";
  }
  return text;
}

}  // namespace

std::string TrainText(const TrainResult& result) {
  std::string text = FactLines(ConditionFacts(result));
  text.append("\n").append(SideLines(result));
  for (const std::vector<Fact>& facts : {EfficiencyFacts(result), TargetFacts(result)}) {
    if (!facts.empty()) text.append("\n").append(FactLines(facts));
  }
  text += "\nspeed of B over A, by pair:";
  for (const double ratio : result.ratio.by_pair) text += fmt::format(" {:.3f}", ratio);
  return text + "\n" + result.sentence + "\n";
}

}  // namespace engine::bench
