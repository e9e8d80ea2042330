#include "tests/conformance/parameter_server/served_world.h"

#include <algorithm>

namespace engine::test {
namespace {

std::vector<ServedCase>& Cases() {
  static std::vector<ServedCase> cases;
  return cases;
}

}  // namespace

void SetCases(std::vector<ServedCase> cases) {
  Cases() = std::move(cases);
}

std::vector<ServedCase> CasesOf(std::initializer_list<UpdateMode> modes, int least_servers) {
  std::vector<ServedCase> found;
  for (const ServedCase& served : Cases()) {
    const bool is_asked_for = std::find(modes.begin(), modes.end(), served.mode) != modes.end();
    if (is_asked_for && served.servers >= least_servers) found.push_back(served);
  }
  return found;
}

}  // namespace engine::test
