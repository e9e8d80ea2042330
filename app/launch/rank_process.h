// One member, a process or a thread: started by us or by another launcher, it talks to the store
// server over one socket.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "app/launch/launch.h"
#include "app/launch/stop_signals.h"
#include "app/launch/store_client.h"
#include "core/base/rank_context.h"

namespace engine::launch {

using RankBody = std::function<Status(base::RankContext&)>;

class RankProcess {
 public:
  enum class SecondSignal {
    kIgnore,  // the launcher counts them
    kDie,
  };

  // Throws std::system_error without a descriptor or thread.
  RankProcess(const RankInfo& info, const StopSignals& signals, SecondSignal second,
              const LaunchOptions& options);
  // Of a thread, which hears of signals from the store server alone.
  RankProcess(const RankInfo& info, int64_t rendezvous_timeout_ms)
      : info_(info), rendezvous_timeout_ms_(rendezvous_timeout_ms) {}
  ~RankProcess();

  // Raised with kInterrupted when the user asks to stop before the run has started.
  base::AbortSignal& abort() { return abort_; }

  // Joins over `socket`, runs the body, reports how it ended; an exception that leaves the body is
  // kInternal. The store says how many ranks and servers there are, and whether they are on one
  // host. Call once.
  Status Run(kit::UniqueFd socket, const StoreClient::Identity& identity, const RankBody& body);

  // The cause of the end of the run as the server knows it; OK if it gave none.
  Status cause() const { return client_ ? client_->cause() : Status(); }
  // Whether the store was lost before this member had ended.
  bool lost() const { return client_ && client_->lost(); }
  int stop_requested() const { return stop_requested_.load(); }

 private:
  Status Work(const RankBody& body);
  Status Told(const Status& end) const;  // as all hear of it
  RankInfo PlaceNow() const;
  void Watch();
  void OnSignal(int signal);
  void Stop(int signal, bool started);
  [[noreturn]] void EndHangingWork();

  RankInfo info_;  // complete once joined
  const StopSignals* const signals_ = nullptr;
  const SecondSignal second_ = SecondSignal::kIgnore;
  const LaunchOptions* const options_ = nullptr;
  const int64_t rendezvous_timeout_ms_;
  base::AbortSignal abort_;
  std::atomic<int> stop_requested_{0};
  std::atomic<bool> worked_{false};  // the body has returned
  bool signalled_ = false;           // of the watch
  std::mutex mutex_;
  std::unique_ptr<StoreClient> client_;  // set once, under mutex_
  Status overdue_;                       // guarded by mutex_: the call of a plugin that hangs
  const kit::UniqueFd quit_;             // an eventfd: the watch shall end
  std::thread watch_;                    // last: it ends before what it uses
};

}  // namespace engine::launch
