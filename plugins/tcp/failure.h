// The first thing that went wrong, which every later call reports.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "engine/host.h"
#include "engine/status.h"

namespace engine::tcp {

// When one rank fails, its connections close and the others see only that: they would blame the
// messenger. So a rank that gives up first writes why into the store, and one that loses a
// connection looks there for the cause of its peer.
//
//   <prefix>/cause/<rank> := code ' ' rank ' ' message        numbers in decimal
class Failure {
 public:
  // `stop` makes everything that is pending fail; called once, by the call that raised the failure.
  Failure(Host& host, std::string prefix, std::function<void()> stop);

  bool raised() const noexcept { return raised_.load(std::memory_order_acquire); }
  Status reason() const noexcept;

  // What the caller of the communicator says. The first reason stays. [any-thread]
  void Raise(const Status& reason) noexcept;

  // What this rank found out by itself: looks for the cause if a peer was lost, and tells the
  // others. Returns the first reason. [any-thread]
  Status RaiseFound(const Status& error) noexcept;

 private:
  bool Set(const Status& reason) noexcept;  // whether it is the first
  void Publish(const Status& reason) noexcept;
  Status RootCause(const Status& lost) noexcept;
  std::string Key(int rank) const;

  Host& host_;
  const std::string prefix_;
  const std::function<void()> stop_;
  std::atomic<bool> raised_{false};  // publishes reason_, which is constant from then on
  mutable std::mutex mutex_;
  Status reason_;  // guarded by mutex_
};

}  // namespace engine::tcp
