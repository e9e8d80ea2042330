// Runs the suites of one library, each in a process of its own, and says what came out.
#pragma once

#include <string>
#include <vector>

#include "engine/status.h"
#include "tools/conform/suites.h"

namespace engine::conform {

enum class Outcome { kPassed, kFailed, kSkipped };

struct TestResult {
  std::string suite, test;
  // Of its contract; until the test says it, this one.
  std::string level = "MUST", header = "engine/plugin.h",
              sentence = "Create makes an object of any values that the descriptor allows.";
  std::string seed;  // the last one; empty: it has none
  Outcome outcome = Outcome::kPassed;
  std::string message;  // what was found, or why it was skipped

  bool must() const { return level == "MUST"; }
};

struct SuiteResult {
  const Suite* suite = nullptr;
  std::string absent;  // why it is not for this library
  std::vector<TestResult> tests;
};

struct JudgeSettings {
  std::vector<std::string> command;  // the child's, to which --child, --suite and --skip are added
  std::string test;                  // of the suite; empty: all
  bool wanted = false;               // by name: it may not be absent
  int timeout_s = 60;                // of one test
};

// A test in which the process of the suite crashes, ends or hangs has failed, and the tests after it
// run in another process. A suite without any test that ran has failed. kPlugin: the library cannot
// be loaded.
Result<SuiteResult> JudgeSuite(const Suite& suite, const JudgeSettings& settings);

}  // namespace engine::conform
