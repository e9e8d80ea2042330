// Ranks and servers as threads of this process. The thread that launches them watches them through
// the same store server and supervisor as if they were processes, one end of a socket pair each.

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <future>
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
                     .ranks_may_connect = false}) {}

  LaunchOutcome Run();

 private:
  Status StartMember(int member);
  bool Running() const;
  void Step();

  const RunShape shape_;
  const LaunchOptions& options_;
  const RankBody& body_;
  StopSignals signals_;
  Supervisor supervisor_;
  struct Member {
    std::thread thread;
    std::future<void> ended;
  };
  std::vector<Member> threads_;  // by RunShape::Index, as far as they were started
  // A member that has no descriptor or thread left to join with, or kNobody. Its thread may outlive
  // the run.
  const std::shared_ptr<std::atomic<int>> failed_to_join_ =
      std::make_shared<std::atomic<int>>(base::kNobody);
};

// Runs on the thread of the member, which may outlive the run when it hangs: it shares nothing with
// it but the connection.
void RunMember(const RankInfo& info, kit::UniqueFd socket, int64_t rendezvous_timeout_ms,
               const RankBody& body, std::atomic<int>& failed_to_join) {
  const std::string name = (info.is_server != 0 ? "server" : "rank") + std::to_string(info.rank);
  pthread_setname_np(pthread_self(), name.c_str());
  try {
    RankProcess process(info, rendezvous_timeout_ms);
    const StoreClient::Identity identity{
        base::MemberOf(info), info.world_size, {}, "the launcher", base::kNobody};
    (void)process.Run(std::move(socket), identity, body);
  } catch (const std::exception&) {
    failed_to_join = base::MemberOf(info);
  }
}

Status ThreadedRun::StartMember(int member) {
  const auto theirs = std::make_shared<kit::UniqueFd>(supervisor_.server().Connect());
  const auto ended = std::make_shared<std::promise<void>>();
  if (!*theirs) return CannotStart(shape_, member, strerror(errno));
  try {
    std::thread thread([info = LocalInfo(shape_, member), theirs, ended, body = body_,
                        failed_to_join = failed_to_join_,
                        timeout_ms = options_.rendezvous_timeout_ms] {
      RunMember(info, std::move(*theirs), timeout_ms, body, *failed_to_join);
      ended->set_value();
    });
    threads_.push_back({std::move(thread), ended->get_future()});
  } catch (const std::system_error& error) {
    return CannotStart(shape_, member, error.what());
  }
  return {};
}

// Until every member has left or, after a failure, has had its time to.
bool ThreadedRun::Running() const {
  return !supervisor_.AllGone() &&
         !(supervisor_.failed() &&
           base::Passed(supervisor_.grace_end() + std::chrono::milliseconds(kHangMs)));
}

void ThreadedRun::Step() {
  supervisor_.Step(kPollMs, signals_.fd());
  while (int signal = signals_.Read()) {
    if (supervisor_.stop_signal() != 0) signals_.Die(signal);
    supervisor_.OnStop(signal);
  }
  const int failed = failed_to_join_->exchange(base::kNobody);
  if (failed == base::kNobody) return;
  supervisor_.Fail(failed, CannotStart(shape_, failed, strerror(EAGAIN)));
}

LaunchOutcome ThreadedRun::Run() {
  for (int i = 0; i < shape_.members() && !supervisor_.failed(); ++i) {
    const Status started = StartMember(shape_.At(i));
    if (!started.ok()) supervisor_.Fail(base::kNobody, started);
  }
  while (Running()) Step();
  supervisor_.server().Flush(kFlushMs);
  LaunchOutcome outcome = supervisor_.Outcome();
  outcome.hangs = supervisor_.members().SomebodyIsThere();
  if (outcome.hangs) {
    outcome.status =
        Status::Error(outcome.status.code(), "%s (and since then the threads of these hang: %s)",
                      outcome.status.message(), supervisor_.members().Remaining().c_str())
            .WithRank(outcome.status.rank());
  }
  // Who has not joined yet sees its connection end, and ends. Who has left may still hang.
  supervisor_.server().CloseAll();
  const base::TimePoint deadline = base::DeadlineIn(outcome.hangs ? kFlushMs : kHangMs);
  for (Member& member : threads_) {
    const bool ended = member.ended.wait_until(deadline) == std::future_status::ready;
    ended ? member.thread.join() : member.thread.detach();
    outcome.hangs = outcome.hangs || !ended;
  }
  return outcome;
}

}  // namespace

LaunchOutcome LaunchThreads(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body) {
  return ThreadedRun(plan, options, body).Run();
}

}  // namespace engine::launch
