// The transfers of one rank, which run one after another in the order of submission, and who runs
// them.
//
// The first one is opened as soon as it is submitted, so peers need not wait for a thread of this
// rank to wake up. Then it is run by the first that has an interest in it:
//  * Submit itself, when it can end at once;
//  * a waiter in WaitHost that waits as long as the transfer may take;
//  * the worker, when there is a callback, nobody holds the work, somebody polls or waits
//    impatiently, or a peer waits for it.
// So a rank that waits for what it submits wakes no second thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "collectives.h"
#include "kit/failure.h"
#include "kit/work.h"
#include "worker.h"

namespace engine::shm {

class TransferQueue;

class QueuedWork final : public kit::PooledWork {
 public:
  explicit QueuedWork(std::shared_ptr<TransferQueue> queue) noexcept : queue_(std::move(queue)) {}

 private:
  friend class TransferQueue;
  static constexpr uint32_t kAsked = kFirstOwnFlag;  // Want was called

  void Help(kit::Clock::time_point give_up) noexcept override;
  void Want() noexcept override;

  const std::shared_ptr<TransferQueue> queue_;
  bool queued_ = false;  // these three guarded by the queue's mutex
  bool opened_ = false;
  bool counted_ = false;  // among wanted_
};

// How long threads may look before they sleep; 0 where cores are scarce.
struct SpinTimes {
  int64_t waiter_arrival_ns = 0;  // a thread in WaitHost, for peers that have not come yet
  int64_t waiter_round_ns = 0;    // ... for peers at work on the same transfer
  int64_t worker_arrival_ns = 0;
  int64_t worker_round_ns = 0;
  int64_t onlooker_ns = 0;  // a thread in WaitHost while another runs the transfer
};

// Kept by its works, so who polls one may outlive the communicator.
class TransferQueue {
 public:
  // All but `spin` is borrowed until Drain has returned.
  TransferQueue(Collectives& collectives, Control& own, kit::Failure& failure,
                const SpinTimes& spin)
      : collectives_(collectives), own_(own), failure_(failure), spin_(spin) {}

  void Submit(QueuedWork& work) noexcept;

  // Runs what is pending unless another thread does. For the worker.
  void RunPending() noexcept;
  // The error of a transfer that is past its deadline, if there is one.
  Status Overdue(kit::Clock::time_point now, kit::Clock::time_point moved) noexcept;
  // After a failure: waits until the worker has ended what is pending and nobody is in here.
  void Drain() noexcept;

 private:
  friend class QueuedWork;
  using Lock = std::unique_lock<std::mutex>;

  void OpenHead() noexcept;
  void Attend() noexcept;
  // Runs the head. Takes the lock and returns with it; the lock is free meanwhile.
  void RunHead(Lock& lock, bool is_worker) noexcept;
  Status RunTransfer(QueuedWork& work, bool is_worker) noexcept;
  void Help(QueuedWork& work, kit::Clock::time_point give_up) noexcept;
  void Observe(const QueuedWork& work, Lock& lock) noexcept;
  void Want(QueuedWork& work) noexcept;

  Collectives& collectives_;
  Control& own_;
  kit::Failure& failure_;
  const SpinTimes spin_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  QueuedWork* head_ = nullptr;
  QueuedWork* tail_ = nullptr;
  bool running_ = false;  // a thread runs the head
  int inside_ = 0;        // threads in RunHead
  int sleepers_ = 0;      // on changed_
  int wanted_ = 0;        // works in the queue that are for the worker
};

}  // namespace engine::shm
