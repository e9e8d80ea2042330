// The exit codes of the command line: an interface that schedulers of jobs depend on (128 and
// above: worth a retry).
#pragma once

#include "engine/status.h"

namespace engine::launch {

constexpr int ExitCode(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInvalidArgument:
      return 2;
    case StatusCode::kBadData:
      return 65;
    case StatusCode::kMissingInput:
      return 66;
    case StatusCode::kConfig:
    case StatusCode::kUnsupported:
      return 78;
    case StatusCode::kPlugin:
    case StatusCode::kDevice:
      return 79;
    case StatusCode::kPeerLost:
    case StatusCode::kAborted:
      return 200;
    case StatusCode::kRendezvous:
      return 201;
    case StatusCode::kTimeout:
      return 202;
    case StatusCode::kStorage:
    case StatusCode::kResourceExhausted:
      return 203;
    case StatusCode::kInterrupted:
      return 130;
    case StatusCode::kInternal:
      return 70;
  }
  return 70;
}

// Refused because it would not be safe, as a plugin is that others may write.
inline constexpr int kUnsafeExit = ExitCode(StatusCode::kPlugin);

}  // namespace engine::launch
