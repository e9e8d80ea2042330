// A lane costs no clock: the thread that looks counts the looks at which it has seen the same call,
// by the number of changes, so that one call of a task is told from the next. A look counts as
// look_ms however long it took, so a machine that was stopped blames nobody.
//
// Listeners run on this thread, and one may wait for a lock that the open call holds: the launcher
// has listened first (StoreClient) and knows by then.
#include "core/base/call_watch.h"

#include <chrono>
#include <utility>

namespace engine::base {

CallWatch::CallWatch(AbortSignal& abort, int64_t setup_limit_ms, int64_t look_ms)
    : abort_(abort),
      setup_limit_ms_(setup_limit_ms),
      look_ms_(look_ms),
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

const CallWatch::Call* CallWatch::DescribeSetup(const std::string& plugin, const char* function) {
  return Describe("plugin '" + plugin + "' has not returned from " + function, setup_limit_ms_);
}

void CallWatch::Look() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::milliseconds(look_ms_), [this] { return ended_; })) {
    for (Slot& slot : slots_) {
      const Call* const call = slot.call.load(std::memory_order_acquire);
      const uint64_t changes = slot.changes.load(std::memory_order_relaxed);
      if (call == nullptr || changes != std::exchange(slot.seen, changes)) slot.looks = 0;
      if (call == nullptr || slot.looks++ * look_ms_ <= call->limit_ms) continue;
      const Status overdue =
          Status::Error(StatusCode::kTimeout, "%s for %lld s", call->text.c_str(),
                        static_cast<long long>(call->limit_ms / 1000));
      lock.unlock();
      abort_.Raise(overdue);
      lock.lock();
    }
  }
}

}  // namespace engine::base
