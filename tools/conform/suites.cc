#include "tools/conform/suites.h"

#include <algorithm>

namespace engine::conform {

const std::vector<Suite>& Suites() {
  using enum PluginKind;
  static const std::vector<Suite> suites = {
      {"plugin", "Plugin", {}},
      {"options", "Options", {}},
      {"scheduler", "Scheduler", {kScheduler}},
      {"optimizer", "Optimizer", {kOptimizer}},
      {"hook", "Hook", {kHook}},
      {"dataset", "Dataset", {kDataset}},
      {"model", "Model", {kModel}},
  };
  return suites;
}

std::vector<const Suite*> SuitesOf(PluginKind kind) {
  std::vector<const Suite*> suites;
  for (const Suite& suite : Suites()) {
    if (suite.kinds.empty() || std::ranges::count(suite.kinds, kind) > 0) suites.push_back(&suite);
  }
  return suites;
}

}  // namespace engine::conform
