#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/report/facts.h"
#include "bench/report/train_report.h"

namespace engine::bench {
namespace {

constexpr size_t kNameColumns = 42;

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
  text += TextOf(StepTable(result));
  for (const std::vector<Fact>& facts : {EfficiencyFacts(result), TargetFacts(result)}) {
    if (!facts.empty()) text.append("\n").append(FactLines(facts));
  }
  text += "\nspeed of B over A, by pair:";
  for (const double ratio : result.ratio.by_pair) text += fmt::format(" {:.3f}", ratio);
  return text + "\n" + result.sentence + "\n";
}

}  // namespace engine::bench
