// What a judgement says: for people, for programs and for a README.
#pragma once

#include <string>
#include <vector>

#include "app/plugins/catalog.h"
#include "tools/conform/judge.h"

namespace engine::conform {

struct Judgement {
  plugins::PluginFile file;
  std::string
      repeat;  // "engine conform FILE --set k=v", to which a suite, a test and a seed are added
  std::vector<SuiteResult> suites;

  // How many tests of a level ran, and how many of them failed.
  int Ran(bool must) const;
  int Failed(bool must) const;
};

// 80 columns: a line per suite, then each failure with its contract, what was found and the command
// that repeats it, then the sum.
std::string Text(const Judgement& judgement);
std::string Json(const Judgement& judgement);
// One line of Markdown.
std::string Badge(const Judgement& judgement);

}  // namespace engine::conform
