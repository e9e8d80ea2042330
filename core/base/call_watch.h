// Which call of which plugin is open, and what becomes of one that does not return.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/base/rank_context.h"

namespace engine::base {

// A call that waits for nobody may take so many times what a transfer may: it may read a large file,
// or compute for long on all ranks alike.
inline constexpr int64_t kCallTimeouts = 20;
// How often the watch looks, and how long a call may stay open when the run has been given up: a
// communicator has promised to end what waits within a second, and does so at once.
inline constexpr int64_t kCallLookMs = 250;
inline constexpr int64_t kCallEndMs = 3 * kCallLookMs;

// One per member. A call that is open for longer than its limit ends the run: it is reported with a
// sentence that names it, and the launcher ends this process if the call does not return even then.
// Others that wait for this member may give up before that. So it is also reported when it is still
// open some time after the end of the run, unless it began shortly before.
class CallWatch {
 public:
  // The threads that call plugins: that of the member, and the one that submits transfers.
  enum Lane : uint8_t { kCompute, kIo, kLanes };
  struct Call {
    std::string text;  // "optimizer 'x' has not returned from 'update fc1.weight'"
    int64_t limit_ms = 0;
  };

  // Looks every `look_ms`, which is how late it may be. `report` (RankContext::Report), on the thread
  // that looks, is told once; null: `abort`, which is borrowed, is raised.
  explicit CallWatch(AbortSignal& abort, int64_t timeout_ms = 30000, int64_t look_ms = kCallLookMs,
                     std::function<void(const Status&)> report = nullptr);
  ~CallWatch();

  // Of a transfer, which limits follow (kCallTimeouts). Before calls are described. [setup]
  void SetTimeout(int64_t timeout_ms) { timeout_ms_ = timeout_ms; }
  int64_t limit_ms() const { return kCallTimeouts * timeout_ms_; }

  // A call that may be opened again and again; there as long as this. [any-thread]
  const Call* Describe(std::string text, int64_t limit_ms);
  // "plugin 'x'" has not returned from "Plan".
  const Call* Describe(const std::string& who, const std::string& function) {
    return Describe(who + " has not returned from " + function, limit_ms());
  }

  // What is open on `lane` from now on, or null; returns what was. Two stores. [thread of the lane]
  const Call* Enter(Lane lane, const Call* call) {
    Slot& slot = slots_[lane];
    const Call* const before = slot.call.load(std::memory_order_relaxed);
    // Only this thread writes. Whoever reads a call sees what Describe wrote.
    slot.changes.store(slot.changes.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    slot.call.store(call, std::memory_order_release);
    return before;
  }

 private:
  struct alignas(64) Slot {
    std::atomic<const Call*> call{nullptr};
    std::atomic<uint64_t> changes{0};
    uint64_t seen = 0;  // of changes, and for how many looks: of the thread that looks
    int64_t looks = 0;
  };
  void Look();
  const Call* Overdue(Slot& slot, int64_t looks_after_end) const;

  AbortSignal& abort_;
  const int64_t look_ms_;
  const std::function<void(const Status&)> report_;
  std::atomic<int64_t> timeout_ms_;
  Slot slots_[kLanes];
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;  // guarded by mutex_; their addresses stay
  bool ended_ = false;      // guarded by mutex_
  std::thread thread_;      // last: uses what is above
};

// `call` is open on `lane` while this lives, and what was before is open again then. Without a watch
// it does nothing.
class OpenCall {
 public:
  OpenCall(CallWatch* watch, CallWatch::Lane lane, const CallWatch::Call* call)
      : watch_(watch), lane_(lane), before_(watch ? watch->Enter(lane, call) : nullptr) {}
  // Outside of steps, on the thread of the member.
  OpenCall(CallWatch* watch, const std::string& who, const std::string& function)
      : OpenCall(watch, CallWatch::kCompute, watch ? watch->Describe(who, function) : nullptr) {}
  OpenCall(const OpenCall&) = delete;
  ~OpenCall() {
    if (watch_ != nullptr) watch_->Enter(lane_, before_);
  }

 private:
  CallWatch* const watch_;
  const CallWatch::Lane lane_;
  const CallWatch::Call* const before_;
};

}  // namespace engine::base
