// The process that runs one suite. It may crash and hang: judge.h is the parent.
//
// It writes a line of JSON for each thing that happens, an array of strings:
//
//   event := ["refused", why]          the library cannot be loaded; nothing else follows
//          | ["absent", why]           the suite is not for this library; nothing else follows
//          | ["test", name] | ["contract", level, header, sentence] | ["seed", number]
//          | ["failed", what] | ["skipped", why] | ["end"]     of the last test
//          | ["done"]                  all tests have run
#pragma once

#include <string>

#include "tools/conform/subject.h"
#include "tools/conform/suites.h"

namespace engine::conform {

// Runs the tests of `suite` that match `filter` (of GoogleTest) and writes events to `fd`.
void RunSuite(Subject subject, const Suite& suite, const std::string& filter, int fd);

}  // namespace engine::conform
