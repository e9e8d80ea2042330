#include "tests/support/engine_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace engine::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(2);

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Variables(const std::map<std::string, std::string>& environment) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  for (const char* name : {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "ASAN_OPTIONS",
                           "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) variables.push_back(std::string(name) + "=" + value);
  }
  return variables;
}

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
  std::vector<std::string> variables = Variables(environment);
  std::vector<char*> argv = Pointers(arguments), envp = Pointers(variables);
  EXPECT_TRUE(out_ >= 0 && err_ >= 0);
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    dup2(out_, STDOUT_FILENO);
    dup2(err_, STDERR_FILENO);
    if (chdir(folder.c_str()) == 0) execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  setpgid(pid_, pid_);  // in both, so that it holds for whoever is first
}

EngineProcess::~EngineProcess() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
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
  return {.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
          .out = ReadAll(out_),
          .err = ReadAll(err_)};
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
