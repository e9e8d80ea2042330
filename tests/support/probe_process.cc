#include "tests/support/probe_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace engine {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point Deadline() {
  return Clock::now() + std::chrono::milliseconds(kDeadlineMs);
}

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
  for (const char* name : {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "ASAN_OPTIONS",
                           "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) variables.push_back(std::string(name) + "=" + value);
  }
  std::vector<char*> argv = Pointers(command), envp = Pointers(variables);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
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
                           const std::map<std::string, std::string>& environment) {
  int pair[2];
  EXPECT_EQ(pipe2(pair, O_CLOEXEC), 0);
  pid_ = StartProgram(std::move(command), environment, ".", pair[1], pair[1]);
  close(pair[1]);
  pipe_ = pair[0];
}

ProbeProcess::~ProbeProcess() {
  KillProgram(pid_);
  close(pipe_);
}

bool ProbeProcess::ReadSome(int timeout_ms) {
  pollfd entry{pipe_, POLLIN, 0};
  if (poll(&entry, 1, timeout_ms) <= 0) return false;
  char buffer[4096];
  ssize_t size = read(pipe_, buffer, sizeof(buffer));
  if (size <= 0) return false;
  output_.append(buffer, static_cast<size_t>(size));
  return true;
}

std::vector<std::string> ProbeProcess::ReadLines(const std::string& prefix, size_t count) {
  for (Clock::time_point deadline = Deadline();;) {
    std::vector<std::string> found;
    size_t begin = 0;
    for (size_t end; (end = output_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string line = output_.substr(begin, end - begin);
      if (line.starts_with(prefix)) found.push_back(line.substr(prefix.size()));
    }
    if (found.size() >= count) return found;
    if (Clock::now() >= deadline) {
      ADD_FAILURE() << "found " << found.size() << " of " << count << " lines '" << prefix
                    << "' in:\n"
                    << output_;
      return found;
    }
    ReadSome(100);
  }
}

int ProbeProcess::Wait() {
  for (Clock::time_point deadline = Deadline(); Clock::now() < deadline;) {
    ReadSome(10);
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) continue;
    pid_ = -1;
    while (ReadSome(0)) {
    }
    return ExitCodeOf(status);
  }
  return -1;
}

int FreePort() {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

void AdoptOrphans() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

bool AwaitNoDescendants() {
  for (Clock::time_point deadline = Deadline(); Clock::now() < deadline;) {
    pid_t pid = waitpid(-1, nullptr, WNOHANG);
    if (pid < 0) return true;  // ECHILD
    if (pid == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

}  // namespace engine
