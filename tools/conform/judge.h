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
  bool broke = false;   // it ended the process

  bool must() const { return level == "MUST"; }
};

struct SuiteResult {
  const Suite* suite = nullptr;
  std::string absent;  // why it is not for this library
  std::vector<TestResult> tests;
};

struct SuiteChoice {
  const Suite* suite = nullptr;
  std::string test;  // empty: all
};

struct JudgeSettings {
  std::vector<std::string> command;  // the child's, to which --child, --suite and --skip are added
  bool wanted = false;               // by name: it may not be absent
  int timeout_s = 60;                // of one test
  // This process is a rank of a launcher's job. Its suites share one child, since a library such as
  // MPI may be started once in each rank; a test that breaks it ends the judgement.
  bool launched = false;
};

// A test in which the process of the suite crashes, ends or hangs has failed, and the tests after it
// run in another process. A suite without any test that ran has failed. kPlugin: the library cannot
// be loaded.
Result<std::vector<SuiteResult>> JudgeSuites(const std::vector<SuiteChoice>& choices,
                                             const JudgeSettings& settings);

}  // namespace engine::conform
