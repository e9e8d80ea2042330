#include "app/run/checkpoint_wait.h"

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

Status DiskStandsStill(int64_t timeout_ms) {
  return Status::Error(
             StatusCode::kTimeout,
             "it has written nothing more of the checkpoint for %lld ms: its disk or file "
             "system stands still",
             static_cast<long long>(timeout_ms))
      .WithRank(0);
}

Status AwaitCheckpoint(base::Store& store, const std::string& key, int64_t timeout_ms) {
  std::string before;
  for (;;) {
    const Status waited = store.Get(key, timeout_ms).status();
    if (waited.code() != StatusCode::kTimeout) return waited;
    const auto now = store.Get(launch::kProgressKey, launch::kReportTimeoutMs);
    if (!now.ok() || *now == before) return DiskStandsStill(timeout_ms);
    before = *now;
  }
}

}  // namespace engine::run
