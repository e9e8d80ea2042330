#include "app/run/checkpoint_wait.h"

#include <utility>

#include "app/launch/deadlines.h"
#include "app/launch/member.h"
#include "core/base/deadline.h"

namespace engine::run {

std::function<void()> CheckpointProgress(base::Store& store) {
  return [&store, next = base::TimePoint{}]() mutable {
    if (!base::Passed(next)) return;
    next = base::DeadlineIn(launch::kProgressEveryMs);
    // Another value than before. An abort is noticed anyway.
    (void)store.Set(launch::kProgressKey, std::to_string(next.time_since_epoch().count()));
  };
}

Status DiskWatch::Check() {
  ENGINE_ASSIGN_OR_RETURN(const bool told, store_.Has(launch::kProgressKey));
  if (told) {
    ENGINE_ASSIGN_OR_RETURN(const std::string now,
                            store_.Get(launch::kProgressKey, launch::kReportTimeoutMs));
    if (std::exchange(before_, now) != now) deadline_ = base::DeadlineIn(timeout_ms_);
  }
  if (!base::Passed(deadline_)) return {};
  return Status::Error(StatusCode::kTimeout,
                       "no more of the checkpoint was written for %lld ms: a disk or file system "
                       "stands still",
                       static_cast<long long>(timeout_ms_))
      .WithRank(0);
}

Result<std::string> AwaitCheckpoint(base::Store& store, const std::string& key, int64_t timeout_ms,
                                    const std::atomic<bool>* ends) {
  DiskWatch disk(store, timeout_ms);
  for (;;) {
    auto got = store.Get(key, launch::kPollMs);
    if (got.ok() || got.status().code() != StatusCode::kTimeout) return got;
    if (ends != nullptr && *ends) return got;
    ENGINE_RETURN_IF_ERROR(disk.Check());
  }
}

}  // namespace engine::run
