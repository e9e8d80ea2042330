#include "tests/support/engine_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/words.h"

namespace engine::test {
EngineProcess::EngineProcess(const std::string& folder, std::vector<std::string> arguments,
                             const std::map<std::string, std::string>& environment)
    : out_(OutputFile()), err_(OutputFile()) {
  arguments.insert(arguments.begin(), ENGINE_TEST_BINARY);
  pid_ = StartProgram(std::move(arguments), environment, folder, out_, err_);
}

EngineProcess::~EngineProcess() {
  KillProgram(pid_);
  close(out_);
  close(err_);
}

std::vector<int> EngineProcess::Children() const {
  const std::string pid = std::to_string(pid_);
  std::ifstream list("/proc/" + pid + "/task/" + pid + "/children");
  std::vector<int> children;
  for (int child; list >> child;) children.push_back(child);
  return children;
}

Outcome EngineProcess::Wait(std::chrono::seconds timeout) {
  int status = 0;
  const bool ended = Await(
      "the end of the engine", [&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, timeout);
  if (!ended) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  return {.exit_code = ExitCodeOf(status), .out = ReadAll(out_), .err = ReadAll(err_)};
}

Outcome RunEngine(const std::string& folder, std::vector<std::string> arguments,
                  const std::map<std::string, std::string>& environment) {
  return EngineProcess(folder, std::move(arguments), environment).Wait();
}

Outcome RunInTwoFolders(const TempFolder& folder, const std::vector<std::string>& arguments,
                        std::map<std::string, std::string> environment) {
  environment.merge(TorchrunRank(0, 2, FreePort()));
  folder.Write("0/empty", "");
  folder.Write("1/empty", "");
  EngineProcess first(folder / "0", arguments, environment);
  environment["RANK"] = environment["LOCAL_RANK"] = "1";
  EngineProcess second(folder / "1", arguments, environment);
  const Outcome outcome = first.Wait();
  EXPECT_EQ(second.Wait().exit_code, outcome.exit_code) << outcome.err;
  return outcome;
}

}  // namespace engine::test
