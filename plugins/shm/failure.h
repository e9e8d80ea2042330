// The first thing that went wrong, which every later call reports.
//
// A rank that finds an error writes it into its segment as the cause; peers that wait for this rank
// report that cause instead of blaming the messenger. A rank whose user aborts has left, no more.
#pragma once

#include <atomic>
#include <mutex>

#include "control.h"
#include "engine/status.h"

namespace engine::shm {

class Failure {
 public:
  explicit Failure(Control* own) : own_(own) {}  // borrowed; null in a world of one

  bool raised() const noexcept { return raised_.load(std::memory_order_acquire); }
  Status reason() const noexcept;

  // What the caller of the communicator says. The first reason stays. [any-thread]
  void Raise(const Status& reason) noexcept;

  // What this rank found out by itself. Returns the first reason. [any-thread]
  Status RaiseFound(const Status& error) noexcept;

 private:
  bool Set(const Status& reason) noexcept;  // whether it is the first
  void Tell(RankState state) noexcept;

  Control* const own_;
  std::atomic<bool> raised_{false};  // publishes reason_, which is constant from then on
  mutable std::mutex mutex_;
  Status reason_;  // guarded by mutex_
};

// What `peer` says about its end: kPeerLost if it left, the cause it found if it gave up, OK while
// it is here.
Status WordsOf(const Control& peer, int rank) noexcept;

}  // namespace engine::shm
