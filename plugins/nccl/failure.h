// The first thing that went wrong, which every later call reports.
#pragma once

#include <atomic>
#include <mutex>

#include "engine/status.h"

namespace engine::nccl {

// [any-thread]
class Failure {
 public:
  bool raised() const noexcept { return raised_.load(std::memory_order_acquire); }
  Status reason() const noexcept;

  // Whether `reason` is the first, and so the one that stays. `by_caller`: see by_caller().
  bool Raise(const Status& reason, bool by_caller) noexcept;

  // Whether the reason came from the user of the communicator; it then means nothing to other
  // ranks, for which this one has left.
  bool by_caller() const noexcept;

 private:
  std::atomic<bool> raised_{false};  // publishes the rest, which is constant from then on
  mutable std::mutex mutex_;
  Status reason_;           // guarded by mutex_
  bool by_caller_ = false;  // guarded by mutex_
};

}  // namespace engine::nccl
