// The exit codes of the command line: an interface that schedulers of jobs depend on (128 and
// above: worth a retry).
#pragma once

#include "engine/status.h"

namespace engine::launch {

constexpr int ExitCode(StatusCode code) noexcept {
  using enum StatusCode;
  constexpr struct {
    StatusCode code;
    int exit_code;
  } kTable[] = {{kOk, 0},
                {kInvalidArgument, 2},
                {kBadData, 65},
                {kMissingInput, 66},
                {kConfig, 78},
                {kUnsupported, 78},
                {kPlugin, 79},
                {kDevice, 79},
                {kInterrupted, 130},
                {kPeerLost, 200},
                {kAborted, 200},
                {kRendezvous, 201},
                {kTimeout, 202},
                {kStorage, 203},
                {kResourceExhausted, 203},
                {kInternal, 70}};
  for (const auto& entry : kTable) {
    if (entry.code == code) return entry.exit_code;
  }
  return 70;
}

// Refused because it would not be safe, as a plugin is that others may write.
inline constexpr int kUnsafeExit = ExitCode(StatusCode::kPlugin);

}  // namespace engine::launch
