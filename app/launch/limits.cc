#include "app/launch/limits.h"

#include <cstring>
#include <string>

namespace engine::launch {

Status WithLimits(const Status& status) {
  const StatusCode code = status.code();
  const bool possible = code == StatusCode::kResourceExhausted || code == StatusCode::kStorage ||
                        code == StatusCode::kPlugin || code == StatusCode::kRendezvous ||
                        code == StatusCode::kInternal;
  if (!possible) return status;
  const bool no_memory = MemoryIsOut();
  std::string limits;
  for (const Limit& limit : kLimits) {
    const bool named = std::strstr(status.message(), std::strerror(limit.error)) != nullptr;
    const bool behind = no_memory ? limit.error == ENOMEM : named;
    if (!behind || LimitOf(limit) < 0) continue;
    limits += (limits.empty() ? "" : ", ") + std::to_string(LimitOf(limit)) + " " + limit.name +
              " (ulimit " + limit.flag + ")";
  }
  if (limits.empty()) return status;
  return Status::Error(StatusCode::kResourceExhausted, "%s; raise the limit of this process: %s",
                       status.message(), limits.c_str())
      .WithRank(status.rank());
}

}  // namespace engine::launch
