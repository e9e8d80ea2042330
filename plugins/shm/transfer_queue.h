// The transfers of one rank, which run one after another in the order of submission, and who runs
// them.
//
// The first one is opened as soon as it is submitted, so peers need not wait for a thread of this
// rank to wake up. Then it is run by the first that has an interest in it:
//  * Submit itself, when it can end at once;
//  * a waiter in WaitHost whose patience lasts as long as the transfer's;
//  * the worker, when there is a callback, nobody holds the work, somebody polls or waits
//    impatiently, or a peer waits for it.
// So a rank that waits for what it submits wakes no second thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives.h"
#include "engine/communicator.h"
#include "failure.h"
#include "worker.h"

namespace engine::shm {

class TransferQueue;

class QueuedWork final : public Work {
 public:
  explicit QueuedWork(TransferQueue& queue) noexcept : queue_(queue) {}

  WorkState state() const noexcept override;
  int64_t started_ns() const noexcept override {
    return started_ns_.load(std::memory_order_relaxed);
  }
  Status WaitHost(int64_t timeout_ms) noexcept override;
  Status WaitStream(Stream* stream) noexcept override;
  void OnDone(void (*callback)(void* context), void* context) noexcept override;
  void Release() noexcept override;

 private:
  friend class TransferQueue;
  bool terminal() const noexcept {
    return state_.load(std::memory_order_acquire) != WorkState::kPending;
  }

  TransferQueue& queue_;
  std::atomic<WorkState> state_{WorkState::kPending};  // publishes status_
  std::atomic<int64_t> started_ns_{0};                 // publishes nothing
  std::atomic<bool> asked_{false};                     // Want was called; publishes nothing

  // Guarded by the queue's mutex; transfer_ and deadline_ns_ are constant while the work is used.
  Transfer transfer_;
  int64_t deadline_ns_ = 0;
  Status status_;
  void (*callback_)(void* context) = nullptr;
  void* callback_context_ = nullptr;
  QueuedWork* next_ = nullptr;  // in the queue, or among the free
  bool opened_ = false;
  bool counted_ = false;  // among wanted_
  bool released_ = false;
};

// How long threads may look before they sleep; 0 where cores are scarce.
struct SpinTimes {
  int64_t waiter_arrival_ns = 0;  // a thread in WaitHost, for peers that have not come yet
  int64_t waiter_round_ns = 0;    // ... for peers at work on the same transfer
  int64_t worker_arrival_ns = 0;
  int64_t worker_round_ns = 0;
  int64_t onlooker_ns = 0;  // a thread in WaitHost while another runs the transfer
};

class TransferQueue {
 public:
  // Gives the queue up; it goes when the last work is released.
  struct Closer {
    void operator()(TransferQueue* queue) const noexcept { queue->Close(); }
  };
  using Owner = std::unique_ptr<TransferQueue, Closer>;

  // What runs transfers; null members in a world of one, where they are copies. Borrowed until
  // Drain has returned.
  struct Machine {
    Collectives* collectives = nullptr;
    Control* own = nullptr;
  };

  TransferQueue(const Machine& machine, Failure& failure, const SpinTimes& spin)
      : machine_(machine), failure_(failure), spin_(spin) {}

  Status Submit(const Transfer& transfer, Work** out) noexcept;

  // Runs what is pending unless another thread does. For the worker.
  void RunPending() noexcept;
  // The error of a transfer that is past its deadline, if there is one.
  Status Overdue(int64_t now_ns) noexcept;
  // After a failure: waits until the worker has ended what is pending and nobody uses Machine.
  void Drain() noexcept;

 private:
  friend class QueuedWork;
  using Lock = std::unique_lock<std::mutex>;

  ~TransferQueue() = default;
  void Close() noexcept;

  QueuedWork* Take() noexcept;
  void Append(QueuedWork* work) noexcept;
  void OpenHead(int64_t now_ns) noexcept;
  void Attend() noexcept;
  // Runs the head. Takes the lock and returns with it; the lock is free meanwhile.
  void RunHead(Lock& lock, bool is_worker) noexcept;
  Status RunTransfer(QueuedWork& work, bool is_worker) noexcept;
  void End(QueuedWork& work, Status status) noexcept;
  Status Wait(QueuedWork& work, int64_t timeout_ms) noexcept;
  void Onlook(const QueuedWork& work, Lock& lock) noexcept;
  // Makes the worker run the queue as far as `work`.
  void Want(QueuedWork& work) noexcept;
  void OnDone(QueuedWork& work, void (*callback)(void*), void* context) noexcept;
  void Release(QueuedWork& work) noexcept;
  void Recycle(QueuedWork& work) noexcept;

  const Machine machine_;
  Failure& failure_;
  const SpinTimes spin_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  QueuedWork* head_ = nullptr;
  QueuedWork* tail_ = nullptr;
  bool running_ = false;  // a thread runs the head
  int inside_ = 0;        // threads in RunHead
  int sleepers_ = 0;      // on changed_
  int wanted_ = 0;        // works in the queue that are for the worker
  bool closed_ = false;
  int unreleased_ = 0;
  QueuedWork* free_ = nullptr;
  std::vector<std::unique_ptr<QueuedWork>> all_;
};

}  // namespace engine::shm
