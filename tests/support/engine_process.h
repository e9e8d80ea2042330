// Runs the engine's binary as a user would, and makes sure that nothing of it is left.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tests/support/probe_process.h"
#include "tests/support/temp_folder.h"

namespace engine::test {

struct Outcome {
  int exit_code = -1;  // 128 + signal for a process that a signal ended
  std::string out;
  std::string err;
};

class EngineProcess {
 public:
  // Starts `engine ARGUMENTS` in `folder`, as leader of a process group of its own, with
  // `environment` and little else, so that the launcher of these tests is not taken for its own.
  EngineProcess(const std::string& folder, std::vector<std::string> arguments,
                const std::map<std::string, std::string>& environment = {});
  ~EngineProcess();  // kills what is left of the group
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;

  int pid() const { return pid_; }
  // Processes whose parent is the engine: its ranks, in the order of their start.
  std::vector<int> Children() const;
  // Waits for the end; a process that is still there at the deadline is killed, and the test fails.
  Outcome Wait(std::chrono::seconds timeout = kHealthy);

 private:
  int pid_ = -1;
  int out_ = -1, err_ = -1;  // files without a name
};

// Runs it to its end.
Outcome RunEngine(const std::string& folder, std::vector<std::string> arguments,
                  const std::map<std::string, std::string>& environment = {});

// By two ranks, which work in folders 0 and 1 of `folder`; what the first says. Both end alike.
Outcome RunInTwoFolders(const TempFolder& folder, const std::vector<std::string>& arguments,
                        std::map<std::string, std::string> environment = {});

}  // namespace engine::test
