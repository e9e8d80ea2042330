#include "bench/process/process_group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/deadline.h"

namespace engine::bench {
namespace {

constexpr int kPollMs = 500, kAskMs = 100;

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

class Child {
 public:
  static Result<Child> Start(const Command& command);
  Child(Child&&) = default;
  Child& operator=(Child&&) = delete;
  ~Child() { Kill(); }

  bool running() const { return !end_.has_value(); }
  int pidfd() const { return pidfd_.get(); }
  // Meaningful once it is not running.
  ProcessEnd end() const { return end_.value_or(ProcessEnd()); }
  // Whether it has ended by now.
  bool Collect();
  void Kill();
  void Terminate() const { kill(-pid_, SIGTERM); }

 private:
  Child(pid_t pid, kit::UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  void SetEnd(int wait_status);

  pid_t pid_;
  kit::UniqueFd pidfd_;  // moved from: no child
  std::optional<ProcessEnd> end_;
};

// In the child. What fails is written to `failure`, which ends silently when the program starts.
[[noreturn]] void Exec(const std::vector<char*>& argv, const std::vector<char*>& envp,
                       const kit::UniqueFd (&streams)[3], int failure, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  bool redirected = true;
  for (int i = 0; i < 3; ++i) redirected = redirected && dup2(streams[i].get(), i) == i;
  if (redirected) execvpe(argv[0], argv.data(), envp.data());
  const int error = errno;
  (void)!write(failure, &error, sizeof(error));
  _exit(127);
}

Result<Child> Child::Start(const Command& command) {
  std::vector<std::string> arguments = command.arguments, variables;
  for (const auto& [name, value] : command.environment) variables.push_back(name + "=" + value);
  const std::vector<char*> argv = Pointers(arguments), envp = Pointers(variables);
  const std::string files[] = {command.input, command.output,
                               command.errors.empty() ? command.output : command.errors};
  kit::UniqueFd streams[3];
  for (int i = 0; i < 3; ++i) {
    const int how = i == 0 ? O_RDONLY : O_WRONLY | O_CREAT | O_APPEND;
    streams[i] = kit::UniqueFd(files[i].empty() ? fcntl(i, F_DUPFD_CLOEXEC, 0)
                                                : open(files[i].c_str(), how | O_CLOEXEC, 0644));
    if (streams[i]) continue;
    return Status::Error(StatusCode::kStorage, "cannot open %s: %s",
                         files[i].empty() ? "the standard output" : files[i].c_str(),
                         strerror(errno));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Status::Error(StatusCode::kResourceExhausted, "pipe: %s", strerror(errno));
  }
  kit::UniqueFd failure(ends[0]), failure_in_child(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status::Error(StatusCode::kResourceExhausted, "fork: %s", strerror(errno));
  if (pid == 0) Exec(argv, envp, streams, failure_in_child.get(), parent);
  setpgid(pid, pid);  // in both, so that it holds for whoever is first
  failure_in_child.Close();
  // glibc 2.36 declares pidfd_open without C linkage.
  Child child(pid, kit::UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))));
  int error = 0;
  if (read(failure.get(), &error, sizeof(error)) == sizeof(error)) {
    return Status::Error(StatusCode::kMissingInput, "cannot start %s: %s", argv[0],
                         strerror(error));
  }
  if (!child.pidfd_) {
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return Status::Error(StatusCode::kResourceExhausted, "pidfd_open: %s", strerror(errno));
  }
  return child;
}

void Child::SetEnd(int wait_status) {
  end_ = ProcessEnd{.exit_code = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status)
                                                          : WEXITSTATUS(wait_status)};
  kill(-pid_, SIGKILL);  // what it may have left behind
}

bool Child::Collect() {
  int wait_status = 0;
  if (running() && waitpid(pid_, &wait_status, WNOHANG) == pid_) SetEnd(wait_status);
  return !running();
}

void Child::Kill() {
  if (!pidfd_ || Collect()) return;
  kill(-pid_, SIGKILL);
  int wait_status = 0;
  if (waitpid(pid_, &wait_status, 0) == pid_) SetEnd(wait_status);
  if (end_) end_->killed = true;
}

Status Stopped() {
  return Status::Error(StatusCode::kInterrupted, "stopped on request");
}

Status WaitForChange(const std::vector<Child>& children, const launch::StopSignals* signals,
                     int timeout_ms) {
  std::vector<pollfd> fds = {{signals != nullptr ? signals->fd() : -1, POLLIN, 0}};
  for (const Child& child : children) {
    if (child.running()) fds.push_back({child.pidfd(), POLLIN, 0});
  }
  // The signal is left pending: it ends the process when everything has been cleaned up.
  if (poll(fds.data(), fds.size(), timeout_ms) <= 0 || fds[0].revents == 0) return {};
  return Stopped();
}

}  // namespace

size_t FirstFailure(const std::vector<ProcessEnd>& ends) {
  size_t found = ends.size();
  for (size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].exit_code == 0) continue;
    if (found == ends.size() || (ends[found].killed && !ends[i].killed)) found = i;
  }
  return found;
}

Result<std::vector<ProcessEnd>> RunTogether(const std::vector<Command>& commands,
                                            std::chrono::milliseconds timeout,
                                            const launch::StopSignals* signals,
                                            std::chrono::milliseconds grace,
                                            const std::atomic<int>* stop,
                                            std::function<bool()> enough) {
  std::vector<Child> children;  // whose destructor kills
  for (const Command& command : commands) {
    ENGINE_ASSIGN_OR_RETURN(Child child, Child::Start(command));
    children.push_back(std::move(child));
  }
  const base::TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  std::optional<base::TimePoint> give_up;  // on the others, once one has failed
  for (;;) {
    bool running = false;
    for (Child& child : children) {
      if (!child.Collect()) running = true;
      if (!child.running() && child.end().exit_code != 0 && !give_up) {
        give_up = std::chrono::steady_clock::now() + grace;
      }
    }
    if (!running) break;
    if (base::Passed(deadline)) {
      return Status::Error(StatusCode::kTimeout, "not done within %.0f s",
                           static_cast<double>(timeout.count()) / 1000);
    }
    if (give_up && base::Passed(*give_up)) {
      for (Child& child : children) child.Kill();
      break;
    }
    if (stop != nullptr && *stop != 0) return Stopped();
    if (enough && enough()) {
      enough = nullptr;
      for (const Child& child : children) {
        if (child.running()) child.Terminate();
      }
    }
    ENGINE_RETURN_IF_ERROR(
        WaitForChange(children, signals,
                      base::RemainingMs(give_up ? std::min(deadline, *give_up) : deadline,
                                        enough ? kAskMs : kPollMs)));
  }
  std::vector<ProcessEnd> ends;
  for (const Child& child : children) ends.push_back(child.end());
  return ends;
}

}  // namespace engine::bench
