// Ranks and servers as threads of this process. The thread that launches them watches them through
// the same store server and supervisor as if they were processes, one end of a socket pair each.

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "app/launch/exit_code.h"
#include "app/launch/launch_modes.h"
#include "app/launch/member.h"
#include "app/launch/supervisor.h"

namespace engine::launch {
namespace {

class ThreadedRun {
 public:
  ThreadedRun(const LaunchPlan& plan, const LaunchOptions& options, const RankBody& body)
      : shape_{plan.info.world_size, plan.info.servers, true},
        options_(options),
        body_(body),
        supervisor_({.shape = shape_,
                     .place = "this process",
                     .options = options,
                     .ranks_may_connect = false,
                     .explain_loss = [](int) {
                       return Supervisor::Loss{
                           Status::Error(StatusCode::kPeerLost,
                                         "its thread closed its connection to the launcher"),
                           ExitCode(StatusCode::kPeerLost)};
                     }}) {}

  LaunchOutcome Run();

 private:
  struct Thread {
    std::thread thread;
    // Set by the thread: it has no descriptor or thread left to join with. It may outlive the run.
    std::shared_ptr<std::atomic<bool>> failed_to_join = std::make_shared<std::atomic<bool>>(false);
  };

  Status StartMember(int member);
  bool Running() const;
  void Step();

  const RunShape shape_;
  const LaunchOptions& options_;
  const RankBody& body_;
  StopSignals signals_;
  Supervisor supervisor_;
  std::vector<Thread> threads_;  // by RunShape::Index, as far as they were started
};

// Runs on the thread of the member, which may outlive the run when it hangs: it shares nothing with
// it but the connection.
void RunMember(const RankInfo& info, kit::UniqueFd socket, int64_t join_timeout_ms,
               const RankBody& body, std::atomic<bool>& failed_to_join) {
  const std::string name = (info.is_server != 0 ? "server" : "rank") + std::to_string(info.rank);
  pthread_setname_np(pthread_self(), name.c_str());
  try {
    RankProcess process(info);
    const StoreClient::Identity identity{
        base::MemberOf(info), info.world_size, {}, "the launcher", base::kNobody};
    (void)process.Run(std::move(socket), identity, join_timeout_ms, body);
  } catch (const std::exception&) {
    failed_to_join = true;
  }
}

Status ThreadedRun::StartMember(int member) {
  const RankInfo info = LocalInfo(shape_, member);
  const auto failed = [&](const char* why) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "cannot start the thread of %s (of %d ranks and %d servers): %s; raise "
                         "the limits of this process (ulimit -n, ulimit -u)",
                         base::MemberName(member).c_str(), shape_.world_size, shape_.servers, why);
  };
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return failed(strerror(errno));
  const auto theirs = std::make_shared<kit::UniqueFd>(pair[1]);
  supervisor_.server().Adopt(kit::UniqueFd(pair[0]));
  Thread& started = threads_.emplace_back();
  try {
    started.thread =
        std::thread([=, body = body_, failed_to_join = started.failed_to_join,
                     timeout_ms = options_.rendezvous_timeout_ms + kRendezvousGraceMs] {
          RunMember(info, std::move(*theirs), timeout_ms, body, *failed_to_join);
        });
  } catch (const std::system_error& error) {
    threads_.pop_back();
    return failed(error.what());
  }
  return {};
}

// Until every member has left or, after a failure, has had its time to.
bool ThreadedRun::Running() const {
  if (supervisor_.AllGone()) return false;
  return !supervisor_.failed() ||
         !base::Passed(supervisor_.failed_at() +
                       std::chrono::milliseconds(options_.grace_ms + kHangMs));
}

void ThreadedRun::Step() {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  supervisor_.server().AddPollFds(&fds);
  poll(fds.data(), fds.size(), kPollMs);
  while (int signal = signals_.Read()) {
    if (supervisor_.stop_signal() != 0) signals_.Die(signal);
    supervisor_.OnStop(signal);
  }
  for (size_t i = 0; i < threads_.size(); ++i) {
    if (!threads_[i].failed_to_join->exchange(false)) continue;
    supervisor_.Fail(shape_.At(static_cast<int>(i)),
                     Status::Error(StatusCode::kResourceExhausted,
                                   "no descriptor or thread left for it; raise the limits of this "
                                   "process (ulimit -n, ulimit -u)"));
  }
  supervisor_.server().Handle();
  supervisor_.Tick();
}

LaunchOutcome ThreadedRun::Run() {
  for (int i = 0; i < shape_.members() && !supervisor_.failed(); ++i) {
    const Status started = StartMember(shape_.At(i));
    if (!started.ok()) supervisor_.Fail(base::kNobody, started);
  }
  while (Running()) Step();
  supervisor_.server().Flush(kFlushMs);
  LaunchOutcome outcome = supervisor_.Outcome();
  if (supervisor_.members().SomebodyIsThere()) {
    outcome.status =
        Status::Error(outcome.status.code(), "%s (and since then the threads of these hang: %s)",
                      outcome.status.message(), supervisor_.members().Remaining().c_str())
            .WithRank(outcome.status.rank());
  }
  // Who has not joined yet sees its connection end, and ends.
  supervisor_.server().CloseAll();
  for (size_t i = 0; i < threads_.size(); ++i) {
    const bool hangs = supervisor_.members().HasJoined(shape_.At(static_cast<int>(i)));
    hangs ? threads_[i].thread.detach() : threads_[i].thread.join();
  }
  return outcome;
}

}  // namespace

LaunchOutcome LaunchThreads(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body) {
  return ThreadedRun(plan, options, body).Run();
}

}  // namespace engine::launch
