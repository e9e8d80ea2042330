// Members as processes that this process forks; servers may come from elsewhere instead.
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
#include <chrono>
#include <cstdio>
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
  SpawnedRun(const LaunchPlan& plan, const LaunchOptions& options, const RankBody& body,
             bool one_host)
      : shape_{plan.info.world_size, plan.info.servers, one_host},
        restarts_(plan.restarts),
        options_(options),
        body_(body),
        supervisor_(MakeSettings(plan)),
        children_(plan.serve_at.empty() ? shape_.members() : shape_.world_size) {}

  // Where servers join; the rest of them are children.
  void ListenForServers(MemberListener listener) {
    supervisor_.server().Listen(std::move(listener.socket));
    if (listener.key) supervisor_.server().RequireProof(std::move(*listener.key));
  }

  LaunchOutcome Run();

 private:
  struct Child {
    pid_t pid = -1;
    kit::UniqueFd pidfd;
    bool ended = true;    // or not started
    int wait_status = 0;  // once ended
    int incarnation = 0;
    bool lost = false;  // the run goes on without it
    base::TimePoint lost_at{};
    bool replace = false;  // another takes its place when it has ended
  };

  Supervisor::Settings MakeSettings(const LaunchPlan& plan);
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
  // When those that are there are killed: after a failure, and when all have said that they leave.
  base::TimePoint GraceEnd() const {
    const base::TimePoint from = supervisor_.failed() ? supervisor_.failed_at() : all_left_at_;
    if (from == base::TimePoint{}) return base::TimePoint::max();
    return from + std::chrono::milliseconds(options_.grace_ms);
  }
  Supervisor::Loss ExplainLoss(int member);

  const RunShape shape_;
  const int restarts_;
  const LaunchOptions& options_;
  const RankBody& body_;
  StopSignals signals_;
  Supervisor supervisor_;
  std::vector<Child> children_;  // by RunShape::Index
  int restarted_ = 0;
  int signal_count_ = 0;
  bool killed_ = false;
  base::TimePoint killed_at_{};
  base::TimePoint all_left_at_{};
};

Supervisor::Settings SpawnedRun::MakeSettings(const LaunchPlan& plan) {
  Supervisor::Settings settings{.shape = shape_,
                                .place = plan.serve_at.empty() ? "this host" : plan.serve_at,
                                .options = options_,
                                .ranks_may_connect = false};
  settings.explain_loss = [this](int member) { return ExplainLoss(member); };
  settings.replace = [this](int rank) { return Replace(rank); };
  return settings;
}

LaunchOutcome SpawnedRun::Run() {
  Status started = Start();
  if (!started.ok()) {
    supervisor_.Fail(base::kNobody, started);
    KillRest();
  }
  while (Running() &&
         !(killed_ && base::Passed(killed_at_ + std::chrono::milliseconds(kKilledMs)))) {
    Step();
  }
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
  auto failed = [&](const char* what) {
    return WithLimits(Status::Error(StatusCode::kResourceExhausted, "cannot start %s of %d: %s: %s",
                                    base::MemberName(member).c_str(),
                                    base::IsServer(member) ? shape_.servers : shape_.world_size,
                                    what, strerror(errno)));
  };
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return failed("socketpair");  // the launcher needs 2 descriptors for each rank
  }
  kit::UniqueFd ours(pair[0]), theirs(pair[1]);
  std::fflush(nullptr);  // what is buffered must not be written once per process
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid < 0) return failed("fork");
  if (pid == 0) {
    ours.Close();
    BeMember(member, std::move(theirs), parent);
  }
  Child& started = child(member);
  started = Child{.pid = pid, .ended = false, .incarnation = started.incarnation};
  supervisor_.server().Adopt(std::move(ours));
  // glibc 2.36 declares pidfd_open without C linkage.
  started.pidfd = kit::UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!started.pidfd) return failed("pidfd_open");
  return {};
}

void SpawnedRun::BeMember(int member, kit::UniqueFd socket, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(ExitCode(StatusCode::kPeerLost));  // it died before the prctl
  RankInfo info = LocalInfo(shape_, member);
  info.incarnation = child(member).incarnation;
  children_.clear();
  supervisor_.server().CloseAll();  // the sockets of the others are none of ours
  Status status;
  try {
    RankProcess process(info, signals_, RankProcess::SecondSignal::kIgnore, options_);
    StoreClient::Identity identity{member, shape_.world_size, {}, "the launcher", base::kNobody};
    status = process.Run(std::move(socket), identity,
                         options_.rendezvous_timeout_ms + kRendezvousGraceMs, body_);
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
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (const Child& child : children_) {
    if (!child.ended) fds.push_back({child.pidfd.get(), POLLIN, 0});
  }
  supervisor_.server().AddPollFds(&fds);
  poll(fds.data(), fds.size(), killed_ ? kPollMs : base::RemainingMs(GraceEnd(), kPollMs));

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
  const bool all_left = supervisor_.members().AllAreGone() && all_left_at_ == base::TimePoint{};
  if (all_left) all_left_at_ = std::chrono::steady_clock::now();
  if (killed_ || !base::Passed(GraceEnd())) return;
  if (!supervisor_.failed()) supervisor_.Notice("a process that had left did not end: killed");
  KillRest();
}

void SpawnedRun::HandleSignals() {
  while (int signal = signals_.Read()) {
    supervisor_.OnStop(signal);
    if (++signal_count_ < 2) continue;
    supervisor_.Fail(base::kNobody,
                     Status::Error(StatusCode::kInterrupted, "stopped at once by a second %s",
                                   SignalName(signal)));
    KillRest();
  }
}

// What the supervisor says of the loss; the rest is done in HandleLost, which may fork.
std::string SpawnedRun::Replace(int rank) {
  Child& lost = child(rank);
  lost.lost = true;
  lost.lost_at = std::chrono::steady_clock::now();
  const bool over = supervisor_.stop_signal() != 0 || supervisor_.members().IsGone(0);
  if (restarts_ == 0 || over) return {};
  if (restarted_ == restarts_) {
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
    if (!lost.lost) continue;
    if (!lost.ended) {
      const base::TimePoint end = lost.lost_at + std::chrono::milliseconds(options_.grace_ms);
      if (base::Passed(end)) kill(lost.pid, SIGKILL);
      continue;
    }
    if (!std::exchange(lost.replace, false)) continue;
    if (supervisor_.failed() || supervisor_.members().IsGone(0)) continue;
    ++lost.incarnation;
    const Status started = StartMember(rank);
    if (started.ok()) {
      supervisor_.Expect(rank);
      continue;
    }
    supervisor_.Notice(std::string(started.message()) + "; the run goes on without it");
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
  if (!killed_) killed_at_ = std::chrono::steady_clock::now();
  killed_ = true;
  for (Child& child : children_) {
    child.replace = false;
    if (!child.ended) kill(child.pid, SIGKILL);
  }
}

Supervisor::Loss SpawnedRun::ExplainLoss(int member) {
  constexpr int kLost = ExitCode(StatusCode::kPeerLost);
  if (shape_.Index(member) >= static_cast<int>(children_.size())) {
    return {Status::Error(StatusCode::kPeerLost, "its connection to the launcher ended"), kLost};
  }
  Child& lost = child(member);
  const int pid = lost.pid;
  if (!Collect(lost, kExitMs)) {
    return {Status::Error(StatusCode::kPeerLost,
                          "its process (pid %d) closed its connection to the launcher", pid),
            kLost};
  }
  int wait_status = lost.wait_status;
  if (!WIFSIGNALED(wait_status)) {
    const int code = WEXITSTATUS(wait_status);
    // What it has said itself, when it could not start or in the crash handler.
    const bool told = code == ExitCode(StatusCode::kMissingInput) ||
                      code == ExitCode(StatusCode::kResourceExhausted);
    return {
        Status::Error(StatusCode::kPeerLost,
                      "its process (pid %d) ended with exit code %d without a result", pid, code),
        told ? code : kLost};
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
  if (plan.serve_at.empty()) return SpawnedRun(plan, options, body, /*one_host=*/true).Run();
  Result<MemberListener> listener =
      OpenListener(plan.serve_at, plan.key_file, {"engine run", "--serve-at"});
  if (!listener.ok()) return Failed(listener.status());
  SpawnedRun run(plan, options, body, listener->loopback);
  run.ListenForServers(std::move(*listener));
  return run.Run();
}

}  // namespace engine::launch
