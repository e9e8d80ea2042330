// The suites of the conformance kit, and which plugins they judge.
#pragma once

#include <string>
#include <vector>

#include "engine/plugin.h"

namespace engine::conform {

struct Suite {
  const char* name;               // of --suite
  const char* tests;              // GoogleTest's test suites, with ':' between them
  std::vector<PluginKind> kinds;  // empty: all
  // Of an extension: why the library under test, which may well do without it, is not judged, or
  // "". Runs its code.
  std::string (*absent)() = nullptr;
};

const std::vector<Suite>& Suites();

// Those that judge plugins of this kind.
std::vector<const Suite*> SuitesOf(PluginKind kind);

}  // namespace engine::conform
