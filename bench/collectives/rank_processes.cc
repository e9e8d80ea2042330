#include "bench/collectives/rank_processes.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <set>

namespace engine::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Until no child is left; an error as soon as one has failed. SIGCHLD is among the blocked
// `signals`.
Status WaitForAll(std::set<pid_t>* children, const sigset_t& signals, Clock::time_point deadline) {
  while (!children->empty()) {
    int code = 0;
    if (const pid_t child = waitpid(-1, &code, WNOHANG); child > 0) {
      children->erase(child);
      if (code == 0) continue;
      return WIFSIGNALED(code)
                 ? Status::Error(StatusCode::kPeerLost, "a rank died of signal %d", WTERMSIG(code))
                 : Status::Error(StatusCode::kPeerLost, "a rank failed");
    }
    const std::chrono::nanoseconds left = deadline - Clock::now();
    if (left.count() <= 0) return Status::Error(StatusCode::kTimeout, "the ranks took too long");
    const timespec timeout{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &timeout);
    if (signal == SIGINT || signal == SIGTERM) {
      return Status::Error(StatusCode::kAborted, "stopped by signal %d", signal);
    }
  }
  return {};
}

[[noreturn]] void RunChild(const std::function<int(int)>& rank_main, int rank, pid_t parent,
                           const sigset_t& mask) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before the line above
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  const int code = rank_main(rank);
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

Status RunRankProcesses(int ranks, std::chrono::seconds timeout,
                        const std::function<int(int rank)>& rank_main) {
  const auto deadline = Clock::now() + timeout;
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, &before);
  const pid_t parent = getpid();
  std::set<pid_t> children;
  Status status;
  for (int rank = 0; rank < ranks && status.ok(); ++rank) {
    const pid_t child = fork();
    if (child == 0) RunChild(rank_main, rank, parent, before);
    if (child > 0) children.insert(child);
    if (child < 0) status = Status::Error(StatusCode::kResourceExhausted, "cannot fork: %m");
  }
  if (status.ok()) status = WaitForAll(&children, signals, deadline);
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace engine::bench
