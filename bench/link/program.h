// Short-lived programs of the system, such as ip and tc.
#pragma once

#include <string>
#include <vector>

#include "engine/status.h"

namespace engine::bench {

// The path of a program of the system's own folders (/usr/sbin, /sbin, /usr/bin, /bin), or "".
std::string FindProgram(const std::string& name);

// Runs arguments[0], a path, with `input` on its standard input, and returns what
// it wrote to its standard output. kInternal with its standard error when it fails, kTimeout when
// it takes longer than 10 s; it is killed then.
Result<std::string> RunProgram(const std::vector<std::string>& arguments,
                               const std::string& input = "");

}  // namespace engine::bench
