// What one member of a run, a rank or a server, knows of it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/store.h"
#include "engine/host.h"
#include "engine/status.h"

namespace engine::base {

// The first reason why a run is given up. One per member.
class AbortSignal {
 public:
  // The first call wins; calls the listeners once, on the calling thread. [any-thread]
  void Raise(const Status& reason);
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  // OK while nothing is raised. [any-thread]
  Status reason() const;
  // `listener` is called with the reason, at once if there is one already. It must not block.
  // Returns a token for Forget, which waits for a running listener (unless it is called from that
  // listener). [any-thread]
  int Listen(std::function<void(const Status&)> listener);
  void Forget(int token);
  // Nothing is raised any more: the run goes on. Waits for a running listener. [any-thread]
  void Clear();

 private:
  std::atomic<bool> raised_{false};  // the store publishes reason_
  mutable std::mutex mutex_;
  std::condition_variable listener_done_;
  Status reason_;                                                              // guarded by mutex_
  std::vector<std::pair<int, std::function<void(const Status&)>>> listeners_;  // guarded by mutex_
  int next_token_ = 1;                                                         // guarded by mutex_
  int running_token_ = 0;   // guarded by mutex_; the listener being called, or 0
  std::thread::id raiser_;  // guarded by mutex_; the thread that calls it
};

// Where the lines of a member's log go. [any-thread]
using LogSink = std::function<void(LogLevel, std::string_view)>;

class CallWatch;

struct RankContext {
  RankInfo info;
  Store& store;
  AbortSignal& abort;
  // The signal (SIGINT, SIGTERM) by which the user asked to stop, else 0: finish the step, then
  // return kInterrupted. Stays 0 in a server, which leaves when the ranks have left.
  const std::atomic<int>& stop_requested;
  std::function<void()> allow_losses = nullptr;         // the launcher's part of AllowLosses
  LogSink log = nullptr;                                // null: nobody reads it
  std::function<void(const Status&)> report = nullptr;  // the launcher's part of Report
  CallWatch* watch = nullptr;                           // null: no call of a plugin is watched
  // Where a run goes on after the loss of a rank (Store key launch::kRegroupKey), once `abort` was
  // raised with `cause` and nothing of this rank uses it any more: returns when the lost ranks have
  // been replaced, with an empty store and nothing raised; or why the run ends. Null: it ends.
  std::function<Status(const Status& cause)> regroup = nullptr;

  // Of a rank: from now on this run goes on when a rank other than rank 0 dies or fails; the
  // launcher says so (LaunchOptions::notice), and may start another in its place. The loss of rank
  // 0 or of a server ends the run as ever. [any-thread]
  void AllowLosses() const {
    if (allow_losses) allow_losses();
  }

  // Why this member fails: told at once, since the end of its plugins may take longer than the
  // launcher lets it live, and heard also when the failure of others has been told before.
  void Report(const Status& failure) const {
    if (report) report(failure);
    abort.Raise(failure);
  }

  void Log(LogLevel level, std::string_view text) const {
    if (log) log(level, text);
  }
};

}  // namespace engine::base
