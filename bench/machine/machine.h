// What a measurement ran on, for its report.
#pragma once

#include <string>
#include <vector>

namespace engine::bench {

struct Machine {
  std::string cpu;  // "AMD EPYC 7B13"
  int cores = 0;    // that this process may use
  std::string kernel;
  std::string congestion;  // TCP congestion control, outside of emulated links
  double memory_gib = 0;
  double load = 0;           // average of the last minute, before the first run
  std::string engine;        // version line
  std::string command_line;  // that makes the same report again
  std::string time;          // when it began, UTC
};

// What cannot be read is "unknown" or 0.
Machine DescribeMachine(const std::string& engine_version, const std::string& command_line);

// Arguments as a shell would take them back.
std::string ShellWords(const std::vector<std::string>& words);

}  // namespace engine::bench
