// The process that runs one suite, or, as a rank of a launcher's job, all of them one after the
// other. It may crash and hang: judge.h is the parent.
//
// It writes a line of JSON for each thing that happens, an array of strings:
//
//   event := ["refused", why]          the library cannot be loaded; nothing else follows
//          | ["absent", why]           the suite is not for this library; the next one follows
//          | ["test", name] | ["contract", level, header, sentence] | ["seed", number]
//          | ["failed", what] | ["skipped", why] | ["end"]     of the last test
//          | ["done"]                  all tests of the suite have run
#pragma once

#include <string>
#include <vector>

#include "tools/conform/subject.h"
#include "tools/conform/suites.h"

namespace engine::conform {

struct SuiteRun {
  const Suite* suite = nullptr;
  std::string filter;  // of GoogleTest
};

// Runs the tests that match and writes events to `fd`.
void RunSuites(Subject subject, const std::vector<SuiteRun>& runs, int fd);

}  // namespace engine::conform
