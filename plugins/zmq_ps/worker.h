// A rank's side of the parameter servers: cuts transfers into requests and brings them to an end.
//
// Sockets and requests belong to whoever makes progress: the worker's own thread, or a thread that
// waits for a transfer and makes progress itself meanwhile (the caller), so that no thread has to
// wake another one. While a caller does so the worker's thread sleeps: one thread at a time waits
// for the sockets.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "channel.h"
#include "engine/ext/wire_progress.h"
#include "engine/status.h"
#include "partition.h"
#include "work.h"

namespace engine::zmq_ps {

// After a failure every transfer fails with the first reason. Memory of a transfer is neither read
// nor written once its work is terminal.
class Worker final : public WireProgressBase {
 public:
  // Connects to all servers, until `deadline`: kRendezvous names one that is missing.
  static Result<std::unique_ptr<Worker>> Connect(WorkerSettings settings,
                                                 Clock::time_point deadline) noexcept;
  ~Worker();  // Abort, as kAborted, with a farewell that says only that this rank has left

  // Takes the worker's reference to `work`, unless it returns the reason of the failure. [io-lane]
  Status Submit(TransferWork* work) noexcept;

  // Does the work of the worker's thread until `work` is terminal or `deadline` has come. Returns
  // at once when another thread does so, and early after a failure. [any-thread]
  void MakeProgress(const TransferWork& work, Clock::time_point deadline) noexcept;

  // Fails everything with `reason`; the servers are told `farewell`. [any-thread]
  void Abort(const Status& reason, const Status& farewell) noexcept;

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  Status reason() const noexcept;

  // What happens to a Channel; with progress_, but for the last one.
  void Fail(const Status& reason);     // its connection, or the server is broken
  void Refused(const Status& reason);  // a request was, by the server
  void Welcomed(uint64_t last_round);  // for the first time
  // Bytes have left this rank or come to it. [any-thread]
  void Moved() noexcept {
    moved_at_.store(Clock::now(), std::memory_order_relaxed);
    moves_.fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t bytes_moved() const noexcept override { return moves_.load(std::memory_order_relaxed); }
  // A message, or an answer, needs the memory of the work no longer. [any-thread]
  void EndUse(TransferWork* work) noexcept;

 private:
  explicit Worker(WorkerSettings settings);

  void Loop() noexcept;
  void WaitForCaller();
  // What there is to do without waiting, with progress_. Returns how many ms to wait then.
  int Step();
  // Step by one of several threads, with what goes with it.
  int RunStep(bool is_caller);
  void TakeInbox();
  void Begin(TransferWork* work);
  void CheckTime(Clock::time_point now);
  void Probe(const TransferWork* work, Clock::time_point now);
  const TransferWork* FindLate(Clock::time_point now) const;
  Status MissingServer() const;

  void FailAll();
  // A list, to be completed without progress_.
  kit::PooledWork* TakeUnused();
  void Complete(kit::PooledWork* unused) noexcept;

  const WorkerSettings settings_;
  const PartitionRule rule_;

  std::atomic<bool> failed_{false};  // publishes reason_, which is constant from then on
  mutable std::mutex mutex_;         // may be taken with progress_, not the other way round
  std::condition_variable changed_;
  kit::PooledWork* inbox_ = nullptr;  // these guarded by mutex_
  kit::PooledWork** inbox_end_ = &inbox_;
  kit::PooledWork* unused_ = nullptr;  // whose memory nobody refers to any more
  Status reason_;
  Status farewell_;
  bool orderly_ = false;       // it is the destructor that ends it
  bool thread_waits_ = false;  // for the caller to leave, and wants a signal
  bool welcomed_ = false;      // by all servers; written with progress_ only

  std::atomic<Clock::time_point> moved_at_{Clock::time_point()};
  std::atomic<uint64_t> moves_{0};  // here, or where a server has seen it; publishes nothing
  const std::shared_ptr<WakeUp> wake_up_ = std::make_shared<WakeUp>();
  // Its threads use what is above, and end before that does; sockets are below.
  ::zmq::context_t context_;

  PollSet thread_poll_;              // of the thread
  PollSet caller_poll_;              // of the caller
  std::atomic<bool> caller_{false};  // there is one

  std::mutex progress_;  // guards all that follows
  std::vector<std::unique_ptr<Channel>> channels_;
  std::unordered_set<TransferWork*> active_;
  std::unordered_map<uint64_t, uint64_t> rounds_;  // by key: how many there were
  std::vector<Slice> slices_;                      // of Begin
  uint64_t begun_ = 0;                             // transfers
  Clock::time_point next_check_{};
  Status refusal_;        // what a server says of a rank; the reason from decide_at_ on
  bool probing_ = false;  // until decide_at_
  Clock::time_point decide_at_{};

  std::thread thread_;
};

}  // namespace engine::zmq_ps
