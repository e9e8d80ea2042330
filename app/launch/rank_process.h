// One member, a process or a thread: started by us or by another launcher, it talks to the store
// server over one socket.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <thread>

#include "app/launch/launch.h"
#include "app/launch/stop_signals.h"
#include "app/launch/store_client.h"
#include "core/base/rank_context.h"

namespace engine::launch {

using RankBody = std::function<Status(base::RankContext&)>;

// body(context); an exception that leaves it is kInternal.
Status CallBody(const RankBody& body, base::RankContext& context);

class RankProcess {
 public:
  enum class SecondSignal {
    kIgnore,  // the launcher counts them
    kDie,
  };

  RankProcess(const RankInfo& info, const StopSignals& signals, SecondSignal second,
              const LaunchOptions& options);
  // Of a thread, which hears of signals from the store server alone.
  explicit RankProcess(const RankInfo& info) : info_(info) {}
  ~RankProcess();

  // Raised with kInterrupted when the user asks to stop before the run has started.
  base::AbortSignal& abort() { return abort_; }

  // Joins over `socket`, runs the body, reports how it ended. The store says how many ranks and
  // servers there are, and whether they are on one host. Call once.
  Status Run(kit::UniqueFd socket, const StoreClient::Identity& identity, int64_t join_timeout_ms,
             const RankBody& body);

  // The cause of the end of the run as the server knows it; OK if it gave none.
  Status cause() const { return client_ ? client_->cause() : Status(); }
  // Whether the store was lost before this member had ended.
  bool lost() const { return client_ && client_->lost(); }
  int stop_requested() const { return stop_requested_.load(); }

 private:
  void OnSignal(int signal);
  void Stop(int signal, bool started);
  void EndIfItHangs();

  RankInfo info_;  // complete once joined
  const StopSignals* const signals_ = nullptr;
  const SecondSignal second_ = SecondSignal::kIgnore;
  base::AbortSignal abort_;
  std::atomic<int> stop_requested_{0};
  bool signalled_ = false;  // signal thread only
  std::mutex mutex_;
  std::unique_ptr<StoreClient> client_;  // set once, under mutex_
  Status overdue_;                       // guarded by mutex_: the call of a plugin that hangs
  const LaunchOptions* const options_ = nullptr;
  std::counting_semaphore<2> ended_{0};  // the work, and this
  // Last: they end before what they use.
  std::optional<SignalThread> signal_thread_;
  std::thread end_watch_;
};

}  // namespace engine::launch
