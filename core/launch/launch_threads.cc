// Ranks as threads of this process.

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "core/launch/exit_code.h"
#include "core/launch/launch_modes.h"
#include "core/launch/memory_store.h"
#include "core/launch/verdict.h"

namespace engine {
namespace {

// Beyond the grace: a thread cannot be killed.
constexpr int64_t kHangMs = 10000;

// Outlives Launch when a rank hangs, so every thread holds a share.
struct ThreadedRun {
  explicit ThreadedRun(int size) : aborts(size), done(size) {}

  void Fail(int rank, const Status& status);

  Verdict verdict;
  std::vector<AbortSignal> aborts;  // by rank
  std::atomic<int> stop_requested{0};
  std::shared_ptr<MemoryTable> table = std::make_shared<MemoryTable>();

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> done;  // guarded by mutex; by rank
  bool failed = false;     // guarded by mutex
  TimePoint failed_at{};   // guarded by mutex
};

void ThreadedRun::Fail(int rank, const Status& status) {
  verdict.AddReport(rank, status);
  if (status.code() == StatusCode::kInterrupted && stop_requested != 0) return;
  {
    std::lock_guard lock(mutex);
    if (failed) return;
    failed = true;
    failed_at = std::chrono::steady_clock::now();
    changed.notify_all();
  }
  Status reason = AbortReason(status.rank() >= 0 ? status : status.WithRank(rank));
  for (AbortSignal& abort : aborts) abort.Raise(reason);
}

void RunRank(const std::shared_ptr<ThreadedRun>& run, const RankInfo& info, const RankBody& body) {
  pthread_setname_np(pthread_self(), ("rank" + std::to_string(info.rank)).c_str());
  AbortSignal& abort = run->aborts[info.rank];
  // A rank that gives itself up is heard at once, not when its body has returned.
  int token = abort.Listen([&](const Status& reason) { run->Fail(info.rank, reason); });
  {
    MemoryStore store(run->table, abort);
    RankContext context{info, store, abort, run->stop_requested};
    Status status = CallBody(body, context);
    if (!status.ok()) run->Fail(info.rank, status);
  }
  abort.Forget(token);
  std::lock_guard lock(run->mutex);
  run->done[info.rank] = true;
  run->changed.notify_all();
}

// Waits for the ranks; those that hang are named.
std::string WaitForRanks(ThreadedRun& run, int64_t grace_ms) {
  std::unique_lock lock(run.mutex);
  auto all_done = [&] {
    return std::find(run.done.begin(), run.done.end(), false) == run.done.end();
  };
  // Without a failure a run takes as long as it takes.
  run.changed.wait(lock, [&] { return run.failed || all_done(); });
  TimePoint deadline = run.failed_at + std::chrono::milliseconds(grace_ms + kHangMs);
  run.changed.wait_until(lock, deadline, all_done);
  std::string hanging;
  for (size_t rank = 0; rank < run.done.size(); ++rank) {
    if (!run.done[rank]) hanging += (hanging.empty() ? "" : ", ") + std::to_string(rank);
  }
  return hanging;
}

}  // namespace

LaunchOutcome LaunchThreads(const LaunchPlan& plan, const LaunchOptions& options,
                            const RankBody& body) {
  const int size = plan.info.world_size;
  auto run = std::make_shared<ThreadedRun>(size);
  StopSignals signals;
  SignalThread signal_thread(signals, [&](int signal) {
    int none = 0;
    if (!run->stop_requested.compare_exchange_strong(none, signal)) signals.Die(signal);
  });
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    RankInfo info{rank, size, rank, size};
    try {
      threads.emplace_back([run, info, body] { RunRank(run, info, body); });
    } catch (const std::system_error& error) {
      run->Fail(-1, Status::Error(StatusCode::kResourceExhausted,
                                  "cannot start the thread of rank %d of %d: %s", rank, size,
                                  error.what()));
      std::lock_guard lock(run->mutex);
      std::fill(run->done.begin() + rank, run->done.end(), true);
      break;
    }
  }
  std::string hanging = WaitForRanks(*run, options.grace_ms);
  for (std::thread& thread : threads) hanging.empty() ? thread.join() : thread.detach();
  LaunchOutcome outcome = run->verdict.Outcome(run->stop_requested);
  if (!hanging.empty()) {
    outcome.status = Status::Error(outcome.status.code(),
                                   "%s (and since then the threads of these ranks hang: %s)",
                                   outcome.status.message(), hanging.c_str())
                         .WithRank(outcome.status.rank());
  }
  return outcome;
}

}  // namespace engine
