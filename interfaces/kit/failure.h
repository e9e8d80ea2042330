// The first thing that went wrong in a communicator, which every later call reports.
//
// When one rank fails, its connections close and the others see only that: they would blame the
// messenger. So a rank that gives up writes why into the store of its host, and one that loses a
// peer waits a moment there for the cause of that peer:
//
//   <prefix>/cause/<rank> := code ' ' rank ' ' message        numbers in decimal
//
// What is pending ends before that is written: the store may be out of reach.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "engine/host.h"
#include "engine/status.h"
#include "kit/deadline.h"

namespace engine::kit {

// A failure as text for other ranks. Throws std::bad_alloc.
inline std::string CauseText(const Status& reason) {
  return std::to_string(static_cast<int>(reason.code())) + ' ' + std::to_string(reason.rank()) +
         ' ' + reason.message();
}

// "rank 2 gave up: <its message>", with the rank that `publisher` blames; `fallback` when the text
// is no cause.
inline Status ParseCause(int32_t publisher, const std::string& text,
                         const Status& fallback) noexcept {
  int code = 0, rank = -1, message = 0;
  if (std::sscanf(text.c_str(), "%d %d %n", &code, &rank, &message) != 2 || message == 0)
    return fallback;
  return Status::Error(static_cast<StatusCode>(code), "rank %d gave up: %s", publisher,
                       text.c_str() + message)
      .WithRank(rank);
}

// [any-thread]
class Failure {
 public:
  // Makes everything that is pending fail, and tells the peers as far as the implementation has a
  // way of its own. Called once, without locks, by the call that raised the failure.
  using Stop = std::function<void(const Status& reason, bool by_caller)>;

  explicit Failure(Stop stop = {}) : stop_(std::move(stop)) {}
  // With causes in the store of `host`, which is borrowed, below `prefix`.
  Failure(Host& host, std::string prefix, Stop stop)
      : host_(&host), prefix_(std::move(prefix)), stop_(std::move(stop)) {}

  bool raised() const noexcept { return raised_.load(std::memory_order_acquire); }
  // OK while nothing has failed.
  Status reason() const noexcept {
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  // Whether the reason came from the user of the communicator; for other ranks this one has left
  // then.
  bool by_caller() const noexcept {
    const std::lock_guard lock(mutex_);
    return by_caller_;
  }

  // What the caller of the communicator says (Communicator::Abort). The first reason stays. Who has
  // lost a rank does not leave by itself: others hear of that rank.
  void Abort(const Status& reason) noexcept {
    const bool leaves = reason.code() != StatusCode::kPeerLost || reason.rank() < 0;
    if (Set(reason, leaves) && stop_) stop_(reason, leaves);
  }

  // What this rank found out by itself: looks for the cause if a peer was lost, and tells the
  // others. Returns the first reason.
  Status Fail(const Status& error) noexcept {
    if (raised()) return reason();
    const Status cause = error.code() == StatusCode::kPeerLost ? RootCause(error) : error;
    if (Set(cause, false)) {
      if (stop_) stop_(cause, false);
      Publish(cause);
    }
    return reason();
  }

 private:
  static constexpr int64_t kCauseMs = 500;  // for a cause to follow the end of its connections

  bool Set(const Status& reason, bool by_caller) noexcept {  // whether it is the first
    const std::lock_guard lock(mutex_);
    if (raised_.load(std::memory_order_relaxed)) return false;
    reason_ = reason;
    by_caller_ = by_caller;
    raised_.store(true, std::memory_order_release);
    return true;
  }

  std::string Key(int32_t rank) const { return prefix_ + "/cause/" + std::to_string(rank); }

  // As far as it is possible: without it the others blame this rank.
  void Publish(const Status& reason) noexcept {
    if (!host_) return;
    try {
      const std::string text = CauseText(reason);
      (void)host_->StoreSet(Key(host_->rank_info().rank),
                            std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
    } catch (const std::exception&) {
      // No memory for the text.
    }
  }

  // Of a rank that nobody has named: what any rank has to say, which may look for a cause itself.
  Status CauseOfAny(const Status& lost) {
    const Clock::time_point deadline = DeadlineIn(2 * kCauseMs);
    for (int32_t rank = 0; Clock::now() < deadline;
         rank = (rank + 1) % host_->rank_info().world_size) {
      uint32_t told = 0;
      std::string text;
      ENGINE_RETURN_IF_ERROR(host_->StoreHas(Key(rank), &told));
      if (told && StoreGetString(*host_, Key(rank), kCauseMs, &text).ok()) {
        return ParseCause(rank, text, lost);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return lost;
  }

  Status RootCause(const Status& lost) noexcept {
    if (!host_) return lost;
    try {
      if (lost.rank() < 0) return CauseOfAny(lost);
      std::string text;
      if (!StoreGetString(*host_, Key(lost.rank()), kCauseMs, &text).ok()) return lost;
      return ParseCause(lost.rank(), text, lost);
    } catch (const std::exception&) {
      return lost;
    }
  }

  Host* const host_ = nullptr;  // null: nothing is told through a store
  const std::string prefix_;
  const Stop stop_;
  std::atomic<bool> raised_{false};  // publishes the rest, which is constant from then on
  mutable std::mutex mutex_;
  Status reason_;           // guarded by mutex_
  bool by_caller_ = false;  // guarded by mutex_
};

}  // namespace engine::kit
