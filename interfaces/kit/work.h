// The Work of one transfer, from a pool: it is completed exactly once, and a step allocates
// nothing.
//
// A work has two holders: the caller, until Release, and the implementation, until Complete
// returns. What they must agree on is one atomic word, so nothing is locked unless a thread sleeps:
//
//   kTerminal   status_ is final, and what the transfer wrote is visible to who sees this bit
//   kFailed     ... and status_ is an error
//   kCallback   callback_ is set. OnDone and Complete each set their bit and see that of the other
//               if they are the second: exactly one of them calls
//   kSleeping   a thread sleeps on changed_, or is about to and holds mutex_: who sets a bit that
//               is waited for sees this one and notifies with the mutex, or the sleeper sees that
//               bit
//   kReleased   the caller is done with the work
//   kCompleted  the implementation is. Who sets the second of these two drops the work
//   kFree       it was dropped: the pool may take it
//   kLeft       the pool is gone. Who sets the second of these two deletes the work
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/communicator.h"
#include "kit/deadline.h"
#include "kit/describe.h"

namespace engine::kit {

// How much later than its deadline a work of a sound implementation is terminal at worst.
constexpr int64_t kWorkGraceMs = 5000;

class WorkPool;

class PooledWork : public WorkBase {
 public:
  // ---- For the implementation.

  // Constant from Take to the end of both holders.
  const Transfer& transfer() const noexcept { return transfer_; }
  // When it is late, if what it waits for has last moved at `moved`: see Transfer::timeout_ms.
  Clock::time_point DeadlineAfter(Clock::time_point moved) const noexcept {
    return std::max(submitted_, moved) + Timeout(transfer_.timeout_ms) + kCoarseTick;
  }
  // Not after it is late. Both of CoarseNow.
  Clock::time_point deadline() const noexcept { return submitted_ + Timeout(transfer_.timeout_ms); }
  Clock::time_point submitted() const noexcept { return submitted_; }
  bool terminal() const noexcept { return Has(kTerminal); }

  // The first byte leaves. The first call counts. [any-thread]
  void MarkStarted(int64_t now_ns = MonotonicNs()) noexcept {
    if (started_ns() == 0) started_ns_.store(now_ns, std::memory_order_relaxed);
  }

  // Ends the transfer: once, without locks. Calls back. The work may be another transfer when it
  // returns.
  void Complete(Status status) noexcept;

  // For lists of the implementation, of which a work is in one at most.
  PooledWork* next = nullptr;

  // ---- Work:

  WorkState state() const noexcept final {
    if (!terminal()) const_cast<PooledWork*>(this)->Want();  // which may end it
    if (!terminal()) return WorkState::kPending;
    return Has(kFailed) ? WorkState::kFailed : WorkState::kDone;
  }
  int64_t started_ns() const noexcept final { return started_ns_.load(std::memory_order_relaxed); }
  Status WaitHost(int64_t timeout_ms) noexcept final;
  // Streams of the CPU run when they are asked to, so what the host does next is after the wait.
  // It has no limit of its own: what does not move any more ends by its deadline.
  Status WaitStream(Stream*) noexcept override {
    return WaitHost(std::numeric_limits<int64_t>::max());
  }
  void OnDone(void (*callback)(void* context), void* context) noexcept final;
  void Release() noexcept final;

 protected:
  // A thread will wait for this transfer as long as its timeout, and so it may run it. [any-thread]
  virtual void Carry() noexcept {}
  // A thread waits for this transfer, until `give_up` at most: it may run it, and those before it.
  // It sleeps when this returns. [any-thread]
  virtual void Help(Clock::time_point give_up) noexcept { (void)give_up; }
  // Somebody has an interest in the end of this transfer, but no thread waits for it: it is polled,
  // has a callback or was released. [any-thread]
  virtual void Want() noexcept {}
  // Both holders are done with the transfer; the next one may be any other. [any-thread]
  virtual void Drop() noexcept {}
  // The text of errors.
  virtual Text Words() const noexcept { return Describe(transfer_); }

  // Bits that an implementation may set and wait for; all are clear when a transfer begins.
  static constexpr uint32_t kFirstOwnFlag = 1 << 16;
  bool Has(uint32_t flags) const noexcept {
    return (flags_.load(std::memory_order_acquire) & flags) != 0;
  }
  // Publishes what was written before. Returns the bits from before.
  uint32_t Set(uint32_t flags) noexcept {
    const uint32_t before = flags_.fetch_or(flags, std::memory_order_acq_rel);
    if ((before & kSleeping) != 0) {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
    }
    return before;
  }
  // Waits until one of `flags` is set; false when that did not happen by `give_up`.
  bool Await(uint32_t flags, Clock::time_point give_up) noexcept {
    if (Has(flags)) return true;
    std::unique_lock lock(mutex_);
    flags_.fetch_or(kSleeping, std::memory_order_acq_rel);
    return changed_.wait_until(lock, give_up, [&] { return Has(flags); });
  }
  bool has_callback() const noexcept { return Has(kCallback); }
  Status StillPending(int64_t waited_ms) const noexcept {
    return Status::Error(StatusCode::kTimeout, "%s is still pending after a wait of %lld ms",
                         Words().c_str(), static_cast<long long>(waited_ms));
  }
  static constexpr uint32_t kTerminal = 1, kFailed = 2;

 private:
  friend class WorkPool;
  static constexpr uint32_t kCallback = 4, kSleeping = 8, kReleased = 16, kCompleted = 32,
                            kFree = 64, kLeft = 128;

  void Start(const Transfer& transfer) noexcept {
    transfer_ = transfer;
    submitted_ = CoarseNow();
    next = nullptr;
    status_ = {};
    started_ns_.store(0, std::memory_order_relaxed);
    flags_.store(0,
                 std::memory_order_relaxed);  // the caller publishes the work when it hands it on
  }
  // Nothing of the work may be used after this unless the other holder is still there, or has left
  // it to us.
  uint32_t End(uint32_t flag) noexcept { return flags_.fetch_or(flag, std::memory_order_acq_rel); }
  void GiveBack() noexcept {
    Drop();
    if ((End(kFree) & kLeft) != 0) delete this;
  }
  // Neither holder is, or the implementation for a moment at most.
  bool is_idle() const noexcept {
    return (~flags_.load(std::memory_order_relaxed) & (kTerminal | kReleased)) == 0;
  }

  Transfer transfer_;
  Clock::time_point submitted_;
  PooledWork* in_pool_ = this;          // the next one in the ring of the pool
  std::atomic<int64_t> started_ns_{0};  // publishes nothing
  std::atomic<uint32_t> flags_{kTerminal | kReleased | kCompleted | kFree};
  Status status_;                              // written before kTerminal is set
  void (*callback_)(void* context) = nullptr;  // these two written before kCallback is set
  void* callback_context_ = nullptr;

  std::mutex mutex_;  // for sleepers alone
  std::condition_variable changed_;
};

// Works for reuse, in a ring. They outlive it while somebody holds them. [io-lane]
class WorkPool {
 public:
  using Make = std::function<Result<std::unique_ptr<PooledWork>>()>;

  // `make` makes a work. The implementation may hold `held` works for a moment after they are
  // terminal and released: so many are made in advance, and then new ones only when more are in use
  // than ever before.
  WorkPool(int held, Make make) : held_(held), make_(std::move(make)) {}
  // ... of class W, from such arguments.
  template <typename W, typename... Arguments>
  static Make Of(Arguments... arguments) {
    return [=] { return Result<std::unique_ptr<PooledWork>>(std::make_unique<W>(arguments...)); };
  }
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;
  ~WorkPool() {
    PooledWork* work = last_ ? std::exchange(last_->in_pool_, nullptr) : nullptr;
    while (work) {
      PooledWork* const one = std::exchange(work, work->in_pool_);
      if ((one->End(PooledWork::kLeft) & PooledWork::kFree) != 0) delete one;
    }
  }

  // A pending work for `transfer`, with both holders: the free one that was used longest ago.
  Result<PooledWork*> Take(const Transfer& transfer) noexcept {
    PooledWork* free = nullptr;
    int idle = 0;
    for (PooledWork* work = last_; work && (idle <= held_ || !free);) {
      work = work->in_pool_;
      if (work->is_idle()) ++idle;
      if (!free && work->Has(PooledWork::kFree)) free = work;
      if (work == last_) break;
    }
    for (; idle <= held_ || !free; ++idle) {
      ENGINE_ASSIGN_OR_RETURN(free, Add());
    }
    last_ = free;
    free->Start(transfer);
    return free;
  }

 private:
  Result<PooledWork*> Add() noexcept {
    try {
      ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<PooledWork> made, make_());
      if (last_) made->in_pool_ = std::exchange(last_->in_pool_, made.get());
      return last_ = made.release();
    } catch (const std::exception&) {
      return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
    }
  }

  const int held_;
  const Make make_;
  PooledWork* last_ = nullptr;  // taken last
};

inline void PooledWork::Complete(Status status) noexcept {
  const uint32_t end = status.ok() ? kTerminal : kTerminal | kFailed;
  status_ = std::move(status);
  // From here on the caller may release the work, but the pool does not get it before End.
  const uint32_t before = Set(end);
  ENGINE_CHECK((before & kTerminal) == 0, "%s ended twice", Words().c_str());
  if ((before & kCallback) != 0) callback_(callback_context_);
  if ((End(kCompleted) & kReleased) != 0) GiveBack();
}

inline Status PooledWork::WaitHost(int64_t timeout_ms) noexcept {
  // What is small ends in less time than reading the clock a few times takes.
  if (!terminal() && timeout_ms >= transfer_.timeout_ms) Carry();
  if (terminal()) return status_;
  const Clock::time_point give_up = DeadlineIn(timeout_ms);
  Help(give_up);
  return Await(kTerminal, give_up) ? status_ : StillPending(timeout_ms);
}

inline void PooledWork::OnDone(void (*callback)(void* context), void* context) noexcept {
  callback_ = callback;
  callback_context_ = context;
  if (!terminal()) Want();
  if ((Set(kCallback) & kTerminal) != 0) callback(context);
}

inline void PooledWork::Release() noexcept {
  if (!terminal()) Want();
  if ((End(kReleased) & kCompleted) != 0) GiveBack();
}

}  // namespace engine::kit
