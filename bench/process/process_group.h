// Programs that run side by side, none of which outlives the call.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "app/launch/stop_signals.h"
#include "engine/status.h"

namespace engine::bench {

struct Command {
  std::vector<std::string> arguments;  // the first is the program: a path, or a name in PATH
  std::map<std::string, std::string> environment;  // all of it
  std::string output;               // file for what it prints; empty: where this process prints
  std::string errors = "";          // file for its errors; empty: `output` too
  std::string input = "/dev/null";  // file that it reads
};

struct ProcessEnd {
  int exit_code = 0;    // 128 + signal if one killed it
  bool killed = false;  // by us, after another one had failed
};

// For the others, after one has failed, to end by themselves; longer than `engine run` needs.
constexpr std::chrono::milliseconds kGrace{3000};

// Starts all commands, each as a group of its own, and waits for them. After the first that fails
// the others have `grace` to end by themselves. kTimeout when the deadline passes, kInterrupted
// when `signals` has one, which stays pending, or `stop` is not 0 (each may be null); then, as in
// every other case, all groups are killed before it returns. kMissingInput when a program cannot be
// started. A child dies with the thread that calls. `enough`, if there is one, is asked from time to
// time; once it says yes, all get a SIGTERM.
Result<std::vector<ProcessEnd>> RunTogether(const std::vector<Command>& commands,
                                            std::chrono::milliseconds timeout,
                                            const launch::StopSignals* signals,
                                            std::chrono::milliseconds grace = kGrace,
                                            const std::atomic<int>* stop = nullptr,
                                            std::function<bool()> enough = nullptr);

// The index of the process whose failure ended the others, as far as the ends tell; ends.size()
// when none has failed.
size_t FirstFailure(const std::vector<ProcessEnd>& ends);

}  // namespace engine::bench
