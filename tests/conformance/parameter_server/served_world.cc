#include "tests/conformance/parameter_server/served_world.h"

namespace engine::test {
namespace {

std::vector<ServedCase>& Cases() {
  static std::vector<ServedCase> cases;
  return cases;
}

template <typename Predicate>
std::vector<ServedCase> CasesWhere(Predicate predicate) {
  std::vector<ServedCase> found;
  for (const ServedCase& served : Cases()) {
    if (predicate(served)) found.push_back(served);
  }
  return found;
}

}  // namespace

void SetCases(std::vector<ServedCase> cases) {
  Cases() = std::move(cases);
}

std::vector<ServedCase> AllServedCases() {
  return Cases();
}

std::vector<ServedCase> CasesOf(UpdateMode mode) {
  return CasesWhere([mode](const ServedCase& served) { return served.mode == mode; });
}

std::vector<ServedCase> AsyncCases() {
  return CasesWhere([](const ServedCase& served) { return served.mode != UpdateMode::kSync; });
}

std::vector<ServedCase> CasesWithServers() {
  return CasesWhere([](const ServedCase& served) { return served.servers > 0; });
}

std::vector<ServedCase> CasesThatOutliveRanks() {
  return CasesWhere([](const ServedCase& served) {
    return served.mode != UpdateMode::kSync && served.servers > 0;
  });
}

}  // namespace engine::test
