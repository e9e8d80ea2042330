// Ranks and servers as threads of this process.

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "app/launch/exit_code.h"
#include "app/launch/launch_modes.h"
#include "app/launch/member.h"
#include "app/launch/memory_store.h"
#include "app/launch/verdict.h"

namespace engine {
namespace {

// Beyond the grace: a thread cannot be killed.
constexpr int64_t kHangMs = 10000;

// Outlives Launch when a member hangs, so every thread holds a share.
struct ThreadedRun {
  ThreadedRun(const RunShape& members, const LaunchOptions& options)
      : shape(members),
        server_leave_ms(options.server_leave_ms),
        notice(options.notice),
        aborts(shape.members()),
        done(shape.members()) {}

  void Fail(int member, const Status& status);
  // A rank whose loss the run survives. True if the failure of `member` is one.
  bool Lose(int member, const Status& status);
  void Done(int member);
  bool AllDone(int begin, int end) const {  // mutex is held
    return std::find(done.begin() + begin, done.begin() + end, false) == done.begin() + end;
  }
  bool RanksDone() const { return AllDone(0, shape.world_size); }

  const RunShape shape;
  const int64_t server_leave_ms;
  const std::function<void(const std::string&)> notice;
  Verdict verdict;
  std::vector<AbortSignal> aborts;  // by RunShape::Index, as `done`
  std::atomic<int> stop_requested{0};
  const std::atomic<int> never_stop{0};  // what servers see
  std::shared_ptr<MemoryTable> table = std::make_shared<MemoryTable>();

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> done;       // guarded by mutex
  std::vector<int> lost;        // guarded by mutex; ranks that were told of
  bool losses_allowed = false;  // guarded by mutex
  bool failed = false;          // guarded by mutex
  TimePoint failed_at{};        // guarded by mutex
};

void ThreadedRun::Fail(int member, const Status& status) {
  const bool asked = status.code() == StatusCode::kInterrupted && stop_requested != 0;
  if (!asked && Lose(member, status)) return;
  verdict.AddReport(member, status);
  if (asked) return;
  {
    std::lock_guard lock(mutex);
    if (failed) return;
    failed = true;
    failed_at = std::chrono::steady_clock::now();
    changed.notify_all();
  }
  Status reason = AbortReason(status.rank() != kNobody ? status : status.WithRank(member));
  for (AbortSignal& abort : aborts) abort.Raise(reason);
}

bool ThreadedRun::Lose(int member, const Status& status) {
  {
    std::lock_guard lock(mutex);
    if (!losses_allowed || failed || member < 1) return false;
    if (std::find(lost.begin(), lost.end(), member) != lost.end()) return true;
    lost.push_back(member);
  }
  if (notice) {
    notice(MemberName(member) + ": " + status.message() + "; the run goes on without it");
  }
  return true;
}

void ThreadedRun::Done(int member) {
  std::lock_guard lock(mutex);
  done[shape.Index(member)] = true;
  if (RanksDone()) table->Put(kRanksLeftKey, "");
  changed.notify_all();
}

void RunMember(const std::shared_ptr<ThreadedRun>& run, const RankInfo& info,
               const RankBody& body) {
  const int member = MemberOf(info);
  const bool server = info.is_server != 0;
  pthread_setname_np(pthread_self(),
                     ((server ? "server" : "rank") + std::to_string(info.rank)).c_str());
  AbortSignal& abort = run->aborts[run->shape.Index(member)];
  // A member that gives itself up is heard at once, not when its body has returned.
  int token = abort.Listen([&](const Status& reason) { run->Fail(member, reason); });
  {
    MemoryStore store(run->table, abort, /*hears_posts=*/!server);
    RankContext context{info, store, abort, server ? run->never_stop : run->stop_requested,
                        [&run, server] {
                          std::lock_guard lock(run->mutex);
                          run->losses_allowed = run->losses_allowed || !server;
                        }};
    Status status = CallBody(body, context);
    if (!status.ok()) run->Fail(member, status);
  }
  abort.Forget(token);
  run->Done(member);
}

// Waits for the ranks, as long as they take, then for the servers; those that hang are named.
std::string WaitForMembers(ThreadedRun& run, int64_t grace_ms) {
  std::unique_lock lock(run.mutex);
  auto all_done = [&] { return run.AllDone(0, run.shape.members()); };
  run.changed.wait(lock, [&] { return run.failed || run.RanksDone(); });
  const TimePoint leave = DeadlineIn(run.server_leave_ms);
  run.changed.wait_until(lock, leave, [&] { return run.failed || all_done(); });
  if (!run.failed && !all_done()) {
    const auto late = std::find(run.done.begin(), run.done.end(), false);
    const int member = run.shape.At(static_cast<int>(late - run.done.begin()));
    lock.unlock();
    run.Fail(member, Status::Error(StatusCode::kTimeout,
                                   "it did not leave within %lld ms after the last rank",
                                   static_cast<long long>(run.server_leave_ms)));
    lock.lock();
  }
  TimePoint deadline = run.failed_at + std::chrono::milliseconds(grace_ms + kHangMs);
  if (run.failed) run.changed.wait_until(lock, deadline, all_done);
  std::string hanging;
  for (size_t i = 0; i < run.done.size(); ++i) {
    if (run.done[i]) continue;
    hanging += (hanging.empty() ? "" : ", ") + MemberName(run.shape.At(static_cast<int>(i)));
  }
  return hanging;
}

// What is not started is done.
void GiveUpStart(ThreadedRun& run, int index, const char* why) {
  run.Fail(kNobody, Status::Error(StatusCode::kResourceExhausted,
                                  "cannot start the thread of %s (of %d ranks and %d servers): %s",
                                  MemberName(run.shape.At(index)).c_str(), run.shape.world_size,
                                  run.shape.servers, why));
  std::lock_guard lock(run.mutex);
  std::fill(run.done.begin() + index, run.done.end(), true);
}

}  // namespace

LaunchOutcome LaunchThreads(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body) {
  const RunShape shape{plan.info.world_size, plan.info.servers, true};
  auto run = std::make_shared<ThreadedRun>(shape, options);
  StopSignals signals;
  SignalThread signal_thread(signals, [&](int signal) {
    int none = 0;
    if (!run->stop_requested.compare_exchange_strong(none, signal)) signals.Die(signal);
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < shape.members(); ++i) {
    const int member = shape.At(i);
    RankInfo info{.rank = member,
                  .world_size = shape.world_size,
                  .local_rank = member,
                  .local_world_size = shape.world_size,
                  .servers = shape.servers};
    if (IsServer(member)) {
      info.rank = info.local_rank = BlamedServer(member);
      info.is_server = 1;
    }
    try {
      threads.emplace_back([run, info, body] { RunMember(run, info, body); });
    } catch (const std::system_error& error) {
      GiveUpStart(*run, i, error.what());
      break;
    }
  }
  std::string hanging = WaitForMembers(*run, options.grace_ms);
  for (std::thread& thread : threads) hanging.empty() ? thread.join() : thread.detach();
  LaunchOutcome outcome = run->verdict.Outcome(run->stop_requested);
  if (!hanging.empty()) {
    outcome.status =
        Status::Error(outcome.status.code(), "%s (and since then the threads of these hang: %s)",
                      outcome.status.message(), hanging.c_str())
            .WithRank(outcome.status.rank());
  }
  return outcome;
}

}  // namespace engine
