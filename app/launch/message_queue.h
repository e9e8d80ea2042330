// What other ranks have posted to this one, and who listens.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace engine::launch {

class MessageQueue {
 public:
  // In order, one at a time. [any-thread]
  void Deliver(std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (listener_) {
      listener_(text);
    } else {
      kept_.emplace_back(text);
    }
  }

  // See Store::Listen.
  void Listen(std::function<void(std::string_view)> listener) {
    const std::lock_guard lock(mutex_);
    listener_ = std::move(listener);
    if (!listener_) return;
    for (const std::string& text : kept_) listener_(text);
    kept_.clear();
  }

  // What nobody has listened to is none of what comes now.
  void Forget() {
    const std::lock_guard lock(mutex_);
    kept_.clear();
  }

 private:
  std::mutex mutex_;                                // also orders the calls of the listener
  std::function<void(std::string_view)> listener_;  // guarded by mutex_
  std::vector<std::string> kept_;                   // guarded by mutex_
};

}  // namespace engine::launch
