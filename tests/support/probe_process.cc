#include "tests/support/probe_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <thread>

namespace engine {
namespace test {

bool Await(const std::string& what, const std::function<bool()>& condition,
           std::chrono::seconds timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + timeout;
  while (!condition()) {
    if (Clock::now() >= deadline) {
      ADD_FAILURE() << "waited in vain for " << what;
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

int OutputFile() {
  const int fd = memfd_create("output", MFD_CLOEXEC);
  EXPECT_EQ(fcntl(fd, F_SETFL, O_APPEND), 0);
  return fd;
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

}  // namespace test

namespace {

constexpr std::chrono::seconds kDeadline{kDeadlineMs / 1000};

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

int StartProgram(std::vector<std::string> command,
                 const std::map<std::string, std::string>& environment, const std::string& folder,
                 int out, int err) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  for (const char* name :
       {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "ONEDNN_MAX_CPU_ISA", "OMP_WAIT_POLICY",
        "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) variables.push_back(std::string(name) + "=" + value);
  }
  std::vector<char*> argv = Pointers(command), envp = Pointers(variables);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // not even a test that is killed leaves it
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    if (chdir(folder.c_str()) == 0) execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  setpgid(pid, pid);  // in both, so that it holds for whoever is first
  return pid;
}

void KillProgram(int pid) {
  if (pid <= 0) return;
  kill(-pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

int ExitCodeOf(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

ProbeProcess::ProbeProcess(std::vector<std::string> command,
                           const std::map<std::string, std::string>& environment)
    : file_(test::OutputFile()) {
  pid_ = StartProgram(std::move(command), environment, ".", file_, file_);
}

ProbeProcess::~ProbeProcess() {
  KillProgram(pid_);
  close(file_);
}

std::vector<std::string> ProbeProcess::ReadLines(const std::string& prefix, size_t count) {
  std::vector<std::string> found;
  const auto has_found = [&] {
    found.clear();
    std::istringstream lines(output_ = test::ReadAll(file_));
    for (std::string line; std::getline(lines, line) && !lines.eof();) {  // whole ones
      if (line.starts_with(prefix)) found.push_back(line.substr(prefix.size()));
    }
    return found.size() >= count;
  };
  EXPECT_TRUE(test::Await("lines '" + prefix + "'", has_found, kDeadline)) << output_;
  return found;
}

int ProbeProcess::Wait() {
  int status = 0;
  const bool ended = test::Await(
      "the end of a program", [&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, kDeadline);
  output_ = test::ReadAll(file_);
  if (!ended) return -1;
  pid_ = -1;
  return ExitCodeOf(status);
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

void AdoptOrphans() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

bool AwaitNoDescendants() {
  const auto is_alone = [] {
    pid_t ended = 0;
    while ((ended = waitpid(-1, nullptr, WNOHANG)) > 0) continue;
    return ended < 0;  // ECHILD
  };
  return test::Await("the end of all descendants", is_alone, kDeadline);
}

}  // namespace engine
