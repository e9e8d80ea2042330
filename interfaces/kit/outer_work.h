// The Work of a communicator around another one (engine/ext/inner_plugins.h).
#pragma once

#include <atomic>
#include <utility>

#include "engine/communicator.h"
#include "kit/work.h"

namespace engine::kit {

// From a WorkPool. It ends in a callback of the inner work, for which it asks when somebody else than a
// thread that waits wants the end: such a thread waits for the inner work itself, which may carry out
// the transfer on it.
class OuterWork : public PooledWork {
 public:
  // Gives transfer() to `inner`, once. After an error this work is gone.
  Status SubmitTo(Communicator& inner) noexcept {
    heard_.store(false, std::memory_order_relaxed);
    Status status = inner.Submit(transfer(), &inner_);
    if (status.ok()) return status;
    Complete(status);
    Release();
    return status;
  }
  Status WaitStream(Stream* stream) noexcept final { return inner_->WaitStream(stream); }

 protected:
  // The transfer has ended so: once, before the caller hears of it. [any-thread]
  virtual void Ended(const Status& status) noexcept { (void)status; }

 private:
  void Help(Clock::time_point give_up) noexcept final {
    const Status status = inner_->WaitHost(MillisecondsUntil(give_up));
    if (status.ok() || inner_->state() != WorkState::kPending) Want();
  }
  void Want() noexcept final {
    if (heard_.exchange(true, std::memory_order_relaxed)) return;
    inner_->OnDone([](void* work) { static_cast<OuterWork*>(work)->End(); }, this);
  }
  void End() noexcept {
    const Status status = inner_->WaitHost(0);
    MarkStarted(inner_->started_ns());
    Ended(status);
    Complete(status);
  }
  void Drop() noexcept final {
    if (inner_ != nullptr) std::exchange(inner_, nullptr)->Release();
  }

  Work* inner_ = nullptr;
  std::atomic<bool> heard_{false};
};

}  // namespace engine::kit
