#include "failure.h"

namespace engine::nccl {

Status Failure::reason() const noexcept {
  const std::lock_guard lock(mutex_);
  return reason_;
}

bool Failure::Raise(const Status& reason, bool by_caller) noexcept {
  const std::lock_guard lock(mutex_);
  if (raised_.load(std::memory_order_relaxed)) return false;
  reason_ = reason;
  by_caller_ = by_caller;
  raised_.store(true, std::memory_order_release);
  return true;
}

bool Failure::by_caller() const noexcept {
  const std::lock_guard lock(mutex_);
  return by_caller_;
}

}  // namespace engine::nccl
