#include "tests/support/engine_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/support/probe_process.h"

namespace engine::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(2);

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t size;
       (size = pread(fd, buffer, sizeof(buffer), static_cast<off_t>(text.size()))) > 0;) {
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

}  // namespace

EngineProcess::EngineProcess(const std::string& folder, std::vector<std::string> arguments,
                             const std::map<std::string, std::string>& environment)
    : out_(memfd_create("stdout", MFD_CLOEXEC)), err_(memfd_create("stderr", MFD_CLOEXEC)) {
  arguments.insert(arguments.begin(), ENGINE_TEST_BINARY);
  EXPECT_TRUE(out_ >= 0 && err_ >= 0);
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

bool Await(const std::string& what, const std::function<bool()>& condition,
           std::chrono::seconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  while (!condition()) {
    if (Clock::now() >= deadline) {
      ADD_FAILURE() << "waited in vain for " << what;
      return false;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

}  // namespace engine::testing
