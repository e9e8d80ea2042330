// Ranks as processes that this process forks.
//
// A child is watched in two ways: its socket says what it wants to say, its pidfd says that it is
// gone. A child that is gone without kBye has failed; how, is in its wait status.

#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <vector>

#include "core/launch/exit_code.h"
#include "core/launch/launch_modes.h"
#include "core/launch/supervisor.h"

namespace engine {
namespace {

// For a rank that closed its socket, to end; and for a rank that was killed, to be gone.
constexpr int64_t kEndingMs = 300;
constexpr int64_t kKilledMs = 5000;
constexpr int kPollMs = 200;

class SpawnedRun {
 public:
  SpawnedRun(const LaunchPlan& plan, const LaunchOptions& options, const RankBody& body)
      : world_size_(plan.info.world_size),
        options_(options),
        body_(body),
        supervisor_(world_size_, {}, "this host", options.rendezvous_timeout_ms,
                    [this](int rank) { return ExplainLoss(rank); }) {}

  LaunchOutcome Run();

 private:
  struct Child {
    pid_t pid = -1;
    UniqueFd pidfd;
    bool ended = false;
    int wait_status = 0;  // once ended
  };

  Status Start();
  Status StartRank(int rank);
  [[noreturn]] void BeRank(int rank, UniqueFd socket, pid_t parent);
  void Step();
  void HandleSignals();
  bool Collect(int rank, int timeout_ms);
  void KillRest();
  bool Running() const;
  // Once failed.
  TimePoint GraceEnd() const {
    return supervisor_.failed_at() + std::chrono::milliseconds(options_.grace_ms);
  }
  Supervisor::Loss ExplainLoss(int rank);

  const int world_size_;
  const LaunchOptions& options_;
  const RankBody& body_;
  StopSignals signals_;
  Supervisor supervisor_;
  std::vector<Child> children_;  // by rank
  int signal_count_ = 0;
  bool killed_ = false;
  TimePoint killed_at_{};
};

LaunchOutcome SpawnedRun::Run() {
  Status started = Start();
  if (!started.ok()) {
    supervisor_.Fail(-1, started);
    KillRest();
  }
  while (Running() && !(killed_ && Passed(killed_at_ + std::chrono::milliseconds(kKilledMs)))) {
    Step();
  }
  return supervisor_.Outcome();
}

Status SpawnedRun::Start() {
  std::fflush(nullptr);  // what is buffered must not be written once per process
  for (int rank = 0; rank < world_size_; ++rank) ENGINE_RETURN_IF_ERROR(StartRank(rank));
  return {};
}

Status SpawnedRun::StartRank(int rank) {
  auto failed = [&](const char* what, const char* advice) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot start rank %d of %d: %s: %s; %s",
                         rank, world_size_, what, strerror(errno), advice);
  };
  constexpr const char* kRaiseFiles =
      "the launcher needs 2 descriptors for each rank: raise the limit (ulimit -n)";
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return failed("socketpair", kRaiseFiles);
  }
  UniqueFd ours(pair[0]), theirs(pair[1]);
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid < 0) return failed("fork", "raise the limit of processes (ulimit -u)");
  if (pid == 0) {
    ours.reset();
    BeRank(rank, std::move(theirs), parent);
  }
  Child& child = children_.emplace_back();
  child.pid = pid;
  supervisor_.server().Adopt(std::move(ours));
  // glibc 2.36 declares pidfd_open without C linkage.
  child.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!child.pidfd.valid()) return failed("pidfd_open", kRaiseFiles);
  return {};
}

void SpawnedRun::BeRank(int rank, UniqueFd socket, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(ExitCode(StatusCode::kPeerLost));  // it died before the prctl
  children_.clear();
  supervisor_.server().CloseAll();  // the other ranks' sockets are none of ours
  Status status;
  try {
    RankInfo info{rank, world_size_, rank, world_size_};
    RankProcess process(info, signals_, RankProcess::SecondSignal::kIgnore);
    StoreClient::Identity identity{rank, world_size_, {}, "the launcher", -1};
    status = process.Run(std::move(socket), identity, options_.rendezvous_timeout_ms, body_);
  } catch (const std::exception& error) {
    // Without a socket left there is no other way to say it than the exit code.
    status = Status::Error(StatusCode::kResourceExhausted, "%s", error.what());
  }
  std::fflush(nullptr);
  _exit(ExitCode(status.code()));
}

bool SpawnedRun::Running() const {
  for (const Child& child : children_) {
    if (!child.ended) return true;
  }
  return false;
}

void SpawnedRun::Step() {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (const Child& child : children_) {
    if (!child.ended) fds.push_back({child.pidfd.get(), POLLIN, 0});
  }
  supervisor_.server().AddPollFds(&fds);
  bool waiting_to_kill = supervisor_.failed() && !killed_;
  poll(fds.data(), fds.size(), waiting_to_kill ? RemainingMs(GraceEnd(), kPollMs) : kPollMs);

  HandleSignals();
  // Deaths first: the complaints of the ranks that were left alone are in the sockets by now.
  for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
    if (children_[rank].ended || !Collect(rank, 0)) continue;
    supervisor_.server().Drain(rank);
    if (!supervisor_.IsGone(rank)) supervisor_.OnLost(rank);
  }
  supervisor_.server().Handle();
  supervisor_.Tick();
  if (supervisor_.failed() && !killed_ && Passed(GraceEnd())) KillRest();
}

void SpawnedRun::HandleSignals() {
  while (int signal = signals_.Read()) {
    supervisor_.Stop(signal);
    if (++signal_count_ < 2) continue;
    supervisor_.Fail(-1, Status::Error(StatusCode::kInterrupted, "stopped at once by a second %s",
                                       SignalName(signal)));
    KillRest();
  }
}

bool SpawnedRun::Collect(int rank, int timeout_ms) {
  Child& child = children_[rank];
  if (child.ended) return true;
  pollfd entry{child.pidfd.get(), POLLIN, 0};
  if (child.pidfd.valid() && poll(&entry, 1, timeout_ms) <= 0) return false;
  pid_t pid = waitpid(child.pid, &child.wait_status, WNOHANG);
  child.ended = pid == child.pid || (pid < 0 && errno == ECHILD);
  if (child.ended) child.pidfd.reset();
  return child.ended;
}

void SpawnedRun::KillRest() {
  if (!killed_) killed_at_ = std::chrono::steady_clock::now();
  killed_ = true;
  for (Child& child : children_) {
    if (!child.ended) kill(child.pid, SIGKILL);
  }
}

Supervisor::Loss SpawnedRun::ExplainLoss(int rank) {
  constexpr int kLost = ExitCode(StatusCode::kPeerLost);
  const int pid = children_[rank].pid;
  if (!Collect(rank, kEndingMs)) {
    return {Status::Error(StatusCode::kPeerLost,
                          "its process (pid %d) closed its connection to the launcher", pid),
            kLost};
  }
  int wait_status = children_[rank].wait_status;
  if (!WIFSIGNALED(wait_status)) {
    return {Status::Error(StatusCode::kPeerLost,
                          "its process (pid %d) ended with exit code %d without a result", pid,
                          WEXITSTATUS(wait_status)),
            kLost};
  }
  int signal = WTERMSIG(wait_status);
  if (killed_ && signal == SIGKILL) {
    return {Status::Error(StatusCode::kAborted, "its process (pid %d) did not leave and was killed",
                          pid),
            kLost, /*primary=*/false};
  }
  const char* name = sigdescr_np(signal);
  return {Status::Error(StatusCode::kPeerLost, "its process (pid %d) was killed by signal %d (%s)",
                        pid, signal, name ? name : "unknown"),
          128 + signal};
}

}  // namespace

LaunchOutcome LaunchSpawned(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body) {
  return SpawnedRun(plan, options, body).Run();
}

}  // namespace engine
