#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/rank_context.h"

namespace engine::base {

void AbortSignal::Raise(const Status& reason) {
  ENGINE_CHECK(!reason.ok(), "an abort needs a reason");
  std::unique_lock lock(mutex_);
  if (raised()) return;
  reason_ = reason;
  raised_.store(true, std::memory_order_release);
  raiser_ = std::this_thread::get_id();
  // One at a time and without the lock, so that a listener may use this object.
  while (!listeners_.empty()) {
    auto [token, listener] = std::move(listeners_.front());
    listeners_.erase(listeners_.begin());
    running_token_ = token;
    lock.unlock();
    listener(reason);
    lock.lock();
    running_token_ = 0;
    listener_done_.notify_all();
  }
}

Status AbortSignal::reason() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

int AbortSignal::Listen(std::function<void(const Status&)> listener) {
  std::unique_lock lock(mutex_);
  int token = next_token_++;
  // Under the lock: Raise has either not begun, and will find it, or has set the reason.
  if (!raised()) {
    listeners_.emplace_back(token, std::move(listener));
    return token;
  }
  Status reason = reason_;
  lock.unlock();
  listener(reason);
  return token;
}

// After this the listener does not run and will not: what it uses may go. The raiser may forget
// from inside of it, where waiting would never end.
void AbortSignal::Forget(int token) {
  std::unique_lock lock(mutex_);
  std::erase_if(listeners_, [token](const auto& entry) { return entry.first == token; });
  if (running_token_ != token || raiser_ == std::this_thread::get_id()) return;
  listener_done_.wait(lock, [&] { return running_token_ != token; });
}

void AbortSignal::Clear() {
  std::unique_lock lock(mutex_);
  listener_done_.wait(lock, [&] { return listeners_.empty() && running_token_ == 0; });
  raised_ = false;
  reason_ = {};
}

}  // namespace engine::base
