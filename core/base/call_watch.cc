// A lane costs no clock: the thread that looks counts the looks at which it has seen the same call,
// by the number of changes, so that one call of a task is told from the next. A look counts as
// look_ms however long it took, so a machine that was stopped blames nobody.
//
// Listeners of the signal may run on this thread, and one may wait for a lock that the open call
// holds: what comes first in a report is to tell the launcher.
#include "core/base/call_watch.h"

#include <chrono>
#include <utility>

namespace engine::base {

CallWatch::CallWatch(AbortSignal& abort, int64_t timeout_ms, int64_t look_ms,
                     std::function<void(const Status&)> report)
    : abort_(abort),
      look_ms_(look_ms),
      report_(std::move(report)),
      timeout_ms_(timeout_ms),
      thread_([this] { Look(); }) {}

CallWatch::~CallWatch() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

const CallWatch::Call* CallWatch::Describe(std::string text, int64_t limit_ms) {
  const std::lock_guard lock(mutex_);
  return &calls_.emplace_back(Call{std::move(text), limit_ms});
}

// What is open for too long, or null. A healthy call may be under way when the run ends; but others
// have waited about as long as one that hangs is open.
const CallWatch::Call* CallWatch::Overdue(Slot& slot, int64_t looks_after_end) const {
  const Call* const call = slot.call.load(std::memory_order_acquire);
  const uint64_t changes = slot.changes.load(std::memory_order_relaxed);
  if (call == nullptr || changes != std::exchange(slot.seen, changes)) slot.looks = 0;
  if (call == nullptr) return nullptr;
  const int64_t open_ms = slot.looks++ * look_ms_;
  const bool outlives_the_run = looks_after_end * look_ms_ > kCallEndMs &&
                                slot.looks > looks_after_end && 2 * open_ms > timeout_ms_;
  return open_ms > call->limit_ms || outlives_the_run ? call : nullptr;
}

void CallWatch::Look() {
  std::unique_lock lock(mutex_);
  int64_t looks_after_end = 0;
  while (!changed_.wait_for(lock, std::chrono::milliseconds(look_ms_), [this] { return ended_; })) {
    looks_after_end += abort_.raised() ? 1 : 0;
    for (Slot& slot : slots_) {
      const Call* const call = Overdue(slot, looks_after_end);
      if (call == nullptr) continue;
      const Status overdue =
          Status::Error(StatusCode::kTimeout, "%s for %lld s", call->text.c_str(),
                        static_cast<long long>(slot.looks * look_ms_ / 1000));
      lock.unlock();
      return report_ ? report_(overdue) : abort_.Raise(overdue);
    }
  }
}

}  // namespace engine::base
