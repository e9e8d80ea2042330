// Parts to build a communicator from. Compiled into the plugin that includes it and no part of the
// ABI: a communicator may as well be written without it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "engine/communicator.h"
#include "engine/host.h"
#include "engine/status.h"

namespace engine::kit {

using Clock = std::chrono::steady_clock;

// A timeout beyond a year is no different from a year, and does not overflow.
inline Clock::time_point DeadlineIn(int64_t timeout_ms) noexcept {
  constexpr int64_t kYearMs = int64_t{365} * 24 * 3600 * 1000;
  return Clock::now() + std::chrono::milliseconds(std::clamp<int64_t>(timeout_ms, 0, kYearMs));
}

// CLOCK_MONOTONIC, as Work::started_ns tells it.
inline int64_t MonotonicNs() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

inline int64_t MillisecondsUntil(Clock::time_point deadline) noexcept {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return std::max<int64_t>(left, 0);
}

// Whether `value` is one of an enumeration that starts at 0 and ends with `last`.
template <typename Enum>
bool InRange(Enum value, Enum last) noexcept {
  return static_cast<int32_t>(value) >= 0 && value <= last;
}

inline Status InvalidTransfer(const char* what, int64_t value) noexcept {
  return Status::Error(StatusCode::kInvalidArgument, "transfer with %s %lld", what,
                       static_cast<long long>(value));
}

// What a communicator of host memory can say of any transfer without knowing what other ranks
// submit: kInvalidArgument for values out of range and buffers that are missing, kUnsupported for
// memory of a device. Kinds up to `last_kind` are served; buffers of pushes and pulls are not
// looked at.
inline Status CheckTransfer(const Transfer& transfer, const RankInfo& ranks, const char* plugin,
                            TransferKind last_kind) noexcept {
  if (!InRange(transfer.kind, last_kind)) {
    return InvalidTransfer("unknown kind", static_cast<int32_t>(transfer.kind));
  }
  if (!InRange(transfer.dtype, DType::kFloat16)) {
    return InvalidTransfer("unknown dtype", static_cast<int32_t>(transfer.dtype));
  }
  if (!InRange(transfer.reduction, Reduction::kMin)) {
    return InvalidTransfer("unknown reduction", static_cast<int32_t>(transfer.reduction));
  }
  if (transfer.count < 0) return InvalidTransfer("count", transfer.count);
  if (transfer.timeout_ms <= 0) return InvalidTransfer("timeout_ms", transfer.timeout_ms);
  if (transfer.stream && transfer.stream->native()) {
    return Status::Error(StatusCode::kUnsupported,
                         "%s moves host memory only: copy the data to the host first", plugin);
  }
  const bool is_broadcast = transfer.kind == TransferKind::kBroadcast;
  if (is_broadcast && (transfer.root < 0 || transfer.root >= ranks.world_size)) {
    return InvalidTransfer("root", transfer.root);
  }
  if (transfer.kind >= TransferKind::kBarrier || transfer.count == 0) return {};
  const bool sends = !is_broadcast || transfer.root == ranks.rank;
  const bool receives = !is_broadcast || transfer.root != ranks.rank;
  if ((!sends || transfer.send) && (!receives || transfer.recv)) return {};
  return Status::Error(StatusCode::kInvalidArgument,
                       "%s of %lld %s (sequence %llu) without a buffer", Name(transfer.kind),
                       static_cast<long long>(transfer.count), Name(transfer.dtype),
                       static_cast<unsigned long long>(transfer.sequence));
}

}  // namespace engine::kit
