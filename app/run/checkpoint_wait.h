// Ranks write a checkpoint, and who waits for it does so as long as it gets on: a slow disk may take
// longer than a transfer is allowed to, but not without writing anything.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "core/base/deadline.h"
#include "core/base/store.h"
#include "engine/status.h"

namespace engine::run {

// What to call whenever more is on the disk. Tells who waits, now and then.
std::function<void()> CheckpointProgress(base::Store& store);

// Of one who waits, and looks now and then.
class DiskWatch {
 public:
  DiskWatch(base::Store& store, int64_t timeout_ms)
      : store_(store), timeout_ms_(timeout_ms), deadline_(base::DeadlineIn(timeout_ms)) {}
  // kTimeout of rank 0 when nobody has told progress for so long.
  Status Check();

 private:
  base::Store& store_;
  const int64_t timeout_ms_;
  base::TimePoint deadline_;
  std::string before_;
};

// Waits until another rank has set `key`, or for DiskWatch; `ends`: no longer than until that is set.
Result<std::string> AwaitCheckpoint(base::Store& store, const std::string& key, int64_t timeout_ms,
                                    const std::atomic<bool>* ends = nullptr);

}  // namespace engine::run
