// Members as processes that this process forks; servers may come from elsewhere instead.
//
// A child is watched in two ways: its socket says what it wants to say, its pidfd says that it is
// gone. A child that is gone without kBye has failed; how, is in its wait status.

#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/launch/exit_code.h"
#include "app/launch/launch_modes.h"
#include "app/launch/limits.h"
#include "app/launch/supervisor.h"

namespace engine::launch {
namespace {

class SpawnedRun {
 public:
  // `listener`: where servers join, if they come from elsewhere; else they are children too.
  SpawnedRun(const LaunchPlan& plan, const LaunchOptions& options, const RankBody& body,
             MemberListener listener)
      : shape_{plan.info.world_size, plan.info.servers, listener.loopback},
        restarts_(plan.restarts),
        options_(options),
        body_(body),
        supervisor_({.shape = shape_,
                     .place = listener.socket ? plan.serve_at : "this host",
                     .options = options,
                     .ranks_may_connect = false,
                     .explain_loss = [this](int member) { return ExplainLoss(member); },
                     .replace = [this](int rank) { return Replace(rank); },
                     .min_ranks = plan.min_ranks}),
        children_(listener.socket ? shape_.world_size : shape_.members()) {
    if (listener.socket) supervisor_.server().Listen(std::move(listener));
  }

  LaunchOutcome Run();

 private:
  struct Child {
    pid_t pid = -1;
    kit::UniqueFd pidfd;
    bool ended = true;    // or not started
    int wait_status = 0;  // once ended
    int incarnation = 0;
    base::TimePoint kill_at = base::TimePoint::max();  // of one that the run goes on without
    bool replace = false;                              // another takes its place when it has ended
  };

  Status Start();
  Status StartMember(int member);
  [[noreturn]] void BeMember(int member, kit::UniqueFd socket, pid_t parent);
  void Step();
  void HandleSignals();
  std::string Replace(int rank);
  void HandleLost();
  Child& child(int member) { return children_[shape_.Index(member)]; }
  bool Collect(Child& child, int timeout_ms);
  void KillRest();
  bool Running() const;
  // Ranks that go on by themselves need rank 0.
  bool Leaderless() const {
    return !supervisor_.members().regroups() && supervisor_.members().IsGone(0);
  }
  // When those that are there are killed: after a failure, and when all have said that they leave.
  base::TimePoint GraceEnd() const { return std::min(supervisor_.grace_end(), leave_end_); }
  std::optional<Supervisor::Loss> ExplainLoss(int member);

  const RunShape shape_;
  const int restarts_;
  const LaunchOptions& options_;
  const RankBody& body_;
  StopSignals signals_;
  Supervisor supervisor_;
  std::vector<Child> children_;  // by RunShape::Index
  int restarted_ = 0;
  bool signalled_ = false;
  base::TimePoint leave_end_ = base::TimePoint::max();  // for processes that have said BYE
  std::optional<base::TimePoint> killed_end_;           // for processes that were killed
};

LaunchOutcome SpawnedRun::Run() {
  Status started = Start();
  if (!started.ok()) {
    supervisor_.Fail(base::kNobody, started);
    KillRest();
  }
  while (Running() && !(killed_end_ && base::Passed(*killed_end_))) Step();
  supervisor_.server().Flush(kFlushMs);  // to servers elsewhere
  return supervisor_.Outcome();
}

Status SpawnedRun::Start() {
  for (size_t i = 0; i < children_.size(); ++i) {
    ENGINE_RETURN_IF_ERROR(StartMember(shape_.At(static_cast<int>(i))));
  }
  return {};
}

Status SpawnedRun::StartMember(int member) {
  kit::UniqueFd theirs = supervisor_.server().Connect();  // 2 descriptors for each rank
  if (!theirs) return CannotStart(shape_, member, strerror(errno));
  std::fflush(nullptr);  // what is buffered must not be written once per process
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid < 0) return CannotStart(shape_, member, strerror(errno));
  if (pid == 0) BeMember(member, std::move(theirs), parent);
  Child& started = child(member);
  started = Child{.pid = pid, .ended = false, .incarnation = started.incarnation};
  // glibc 2.36 declares pidfd_open without C linkage.
  started.pidfd = kit::UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!started.pidfd) return CannotStart(shape_, member, strerror(errno));
  return {};
}

void SpawnedRun::BeMember(int member, kit::UniqueFd socket, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(ExitCode(StatusCode::kPeerLost));  // it died before the prctl
  RankInfo info = LocalInfo(shape_, member);
  // Where all begin again, none is later than the others.
  info.incarnation = supervisor_.members().regroups() ? 0 : child(member).incarnation;
  children_.clear();
  supervisor_.server().CloseAll();  // the sockets of the others are none of ours
  Status status;
  try {
    RankProcess process(info, signals_, RankProcess::SecondSignal::kIgnore, options_);
    StoreClient::Identity identity{member, shape_.world_size, {}, "the launcher", base::kNobody};
    status = process.Run(std::move(socket), identity, body_);
    // Nobody else can tell the user then.
    if (process.lost() && options_.notice) {
      options_.notice(base::MemberName(member) + ": " + process.abort().reason().message());
    }
  } catch (const std::exception& error) {
    // There is no connection to say it by.
    status = WithLimits(Status::Error(StatusCode::kResourceExhausted, "%s cannot start: %s",
                                      base::MemberName(member).c_str(), error.what()));
    supervisor_.Notice(status.message());
  }
  std::fflush(nullptr);
  _exit(ExitCode(status.code()));
}

// Until every child has ended, and servers elsewhere have left or had their time to.
bool SpawnedRun::Running() const {
  for (const Child& child : children_) {
    if (!child.ended || child.replace) return true;
  }
  if (!supervisor_.members().SomebodyIsThere()) return false;
  return !supervisor_.failed() || !base::Passed(GraceEnd());
}

void SpawnedRun::Step() {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}, {supervisor_.server().fd(), POLLIN, 0}};
  for (const Child& child : children_) {
    if (!child.ended) fds.push_back({child.pidfd.get(), POLLIN, 0});
  }
  poll(fds.data(), fds.size(), killed_end_ ? kPollMs : base::RemainingMs(GraceEnd(), kPollMs));

  HandleSignals();
  // Deaths first: the secondary failures that they caused are in the sockets by now.
  for (size_t i = 0; i < children_.size(); ++i) {
    if (children_[i].ended || !Collect(children_[i], 0)) continue;
    const int member = shape_.At(static_cast<int>(i));
    supervisor_.server().Drain(member);
    if (!supervisor_.members().IsGone(member)) supervisor_.OnLost(member);
  }
  supervisor_.server().Handle();
  supervisor_.Tick();
  HandleLost();
  if (supervisor_.members().AllAreGone()) {
    leave_end_ = std::min(leave_end_, base::DeadlineIn(options_.grace_ms));
  }
  if (killed_end_ || !base::Passed(GraceEnd())) return;
  if (!supervisor_.failed()) supervisor_.Notice("a process that had left did not end: killed");
  KillRest();
}

void SpawnedRun::HandleSignals() {
  while (const int signal = signals_.Read()) {
    const bool second = std::exchange(signalled_, true);
    supervisor_.OnStop(signal);
    if (!second) continue;
    supervisor_.Fail(base::kNobody,
                     Status::Error(StatusCode::kInterrupted, "stopped at once by a second %s",
                                   SignalName(signal).c_str()));
    KillRest();
  }
}

// What the supervisor says of the loss; the rest is done in HandleLost, which may fork.
std::string SpawnedRun::Replace(int rank) {
  Child& lost = child(rank);
  lost.kill_at = base::DeadlineIn(options_.grace_ms);
  const bool over = supervisor_.stop_signal() != 0 || Leaderless();
  if (restarts_ == 0 || over) return {};
  if (restarted_ == restarts_) {
    if (supervisor_.members().regroups()) return {};
    return "the run goes on without it, after all of its " + std::to_string(restarts_) +
           (restarts_ == 1 ? " restart" : " restarts");
  }
  lost.replace = true;
  return "started again (" + std::to_string(++restarted_) + " of " + std::to_string(restarts_) +
         ")";
}

void SpawnedRun::HandleLost() {
  for (int rank = 0; rank < shape_.world_size; ++rank) {
    Child& lost = children_[rank];
    if (!lost.ended && base::Passed(lost.kill_at)) kill(lost.pid, SIGKILL);
    if (!lost.ended || !std::exchange(lost.replace, false)) continue;
    if (supervisor_.failed() || Leaderless()) continue;
    ++lost.incarnation;
    const Status started = StartMember(rank);
    if (started.ok()) {
      supervisor_.Expect(rank);
      continue;
    }
    if (supervisor_.members().regroups()) {
      supervisor_.Fail(rank, started);
    } else {
      supervisor_.Notice(std::string(started.message()) + "; the run goes on without it");
    }
    if (!lost.ended) kill(lost.pid, SIGKILL);
  }
}

bool SpawnedRun::Collect(Child& child, int timeout_ms) {
  if (child.ended) return true;
  pollfd entry{child.pidfd.get(), POLLIN, 0};
  if (child.pidfd && poll(&entry, 1, timeout_ms) <= 0) return false;
  pid_t pid = waitpid(child.pid, &child.wait_status, WNOHANG);
  child.ended = pid == child.pid || (pid < 0 && errno == ECHILD);
  if (child.ended) child.pidfd.Close();
  return child.ended;
}

void SpawnedRun::KillRest() {
  if (!killed_end_) killed_end_ = base::DeadlineIn(kKilledMs);
  for (Child& child : children_) {
    child.replace = false;
    if (!child.ended) kill(child.pid, SIGKILL);
  }
}

std::optional<Supervisor::Loss> SpawnedRun::ExplainLoss(int member) {
  if (shape_.Index(member) >= static_cast<int>(children_.size())) return {};  // it is elsewhere
  Child& lost = child(member);
  const bool ended = Collect(lost, kExitMs);
  const int signal = ended && WIFSIGNALED(lost.wait_status) ? WTERMSIG(lost.wait_status) : 0;
  const auto say = [&](StatusCode code, const std::string& what) {
    return Status::Error(code, "its process (pid %d) %s", lost.pid, what.c_str());
  };
  if (!ended) return {{say(StatusCode::kPeerLost, "closed its connection to the launcher")}};
  if (killed_end_ && signal == SIGKILL) {
    return {{say(StatusCode::kAborted, "did not leave and was killed")}};
  }
  if (signal != 0) {
    const char* const name = sigdescr_np(signal);
    return {{say(StatusCode::kPeerLost, "was killed by signal " + std::to_string(signal) + " (" +
                                            (name != nullptr ? name : "unknown") + ")"),
             128 + signal}};
  }
  const int code = WEXITSTATUS(lost.wait_status);
  // What it has said itself, when it could not start or in the crash handler.
  const bool told = code == ExitCode(StatusCode::kMissingInput) ||
                    code == ExitCode(StatusCode::kResourceExhausted);
  return {{say(StatusCode::kPeerLost,
               "ended with exit code " + std::to_string(code) + " without a result"),
           told ? code : ExitCode(StatusCode::kPeerLost)}};
}

}  // namespace

LaunchOutcome LaunchSpawned(const LaunchPlan& plan, const LaunchOptions& options,
                            const Endpoint& endpoint, const RankBody& body) {
  Result<MemberListener> listener =
      plan.serve_at.empty() ? MemberListener{.loopback = true}
                            : OpenListener(endpoint, plan.key_file, {"engine run", "--serve-at"});
  if (!listener.ok()) return Failed(listener.status());
  return SpawnedRun(plan, options, body, std::move(*listener)).Run();
}

}  // namespace engine::launch
