// What every communicator says of itself and of what it is given. Like all of the kit compiled into
// the plugin that includes it, and no part of the ABI: a communicator may as well be written
// without it.
//
//   work.h        the Work of a transfer, from a pool
//   inner_communicator.h, outer_work.h, passed_work.h  for communicators around others
//   lanes.h       queues, threads and deadlines for such works
//   failure.h     the first failure and its root cause
//   progress.h    what moves, and who is behind
//   describe.h    transfers in words, and as bytes on which ranks agree
//   rendezvous.h  how ranks meet in the store
//   reduce.h      element-wise reductions
//   deadline.h, thread.h, unique_fd.h, float16.h, target_clones.h
#pragma once

#include <cstdint>
#include <exception>

#include "engine/communicator.h"
#include "engine/host.h"
#include "engine/status.h"
#include "kit/deadline.h"
#include "kit/describe.h"

namespace engine::kit {

// What most communicators offer.
inline constexpr uint32_t kCollectives =
    Bit(TransferKind::kAllReduce) | Bit(TransferKind::kReduceScatter) |
    Bit(TransferKind::kAllGather) | Bit(TransferKind::kBroadcast) | Bit(TransferKind::kBarrier);
inline constexpr uint32_t kAllDTypes = Bit(DType::kFloat32) | Bit(DType::kInt32) |
                                       Bit(DType::kUint8) | Bit(DType::kBFloat16) |
                                       Bit(DType::kFloat16);

// Whether `value` is one of an enumeration that starts at 0 and ends with `last`.
template <typename Enum>
bool InRange(Enum value, Enum last) noexcept {
  return static_cast<int32_t>(value) >= 0 && value <= last;
}

inline Status InvalidTransfer(const char* what, int64_t value) noexcept {
  return Status::Error(StatusCode::kInvalidArgument, "transfer with %s %lld", what,
                       static_cast<long long>(value));
}

// What a communicator can say of any transfer without knowing what other ranks submit:
// kInvalidArgument for values out of range and buffers that are missing, kUnsupported for memory of
// a device unless it serves that. Kinds up to `last_kind` are served; buffers of pushes and pulls
// are not looked at.
inline Status CheckTransfer(const Transfer& transfer, const RankInfo& ranks, const char* plugin,
                            TransferKind last_kind, bool device_memory = false) noexcept {
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
  if (!device_memory && transfer.stream && transfer.stream->native()) {
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
  return Status::Error(StatusCode::kInvalidArgument, "%s without a buffer",
                       Describe(transfer).c_str());
}

// The body of the create function of a communicator without servers: `make` gives a
// Result<std::unique_ptr<...>>, and may throw.
template <typename MakeCommunicator>
Status CreateCommunicator(Host& host, const char* plugin, Object** out,
                          const MakeCommunicator& make) noexcept {
  if (host.rank_info().is_server != 0) {
    return Status::Error(StatusCode::kConfig,
                         "communicator '%s' has no servers: drop --servers or choose one that "
                         "has, such as zmq_ps",
                         plugin);
  }
  try {
    ENGINE_ASSIGN_OR_RETURN(auto communicator, make());
    *out = communicator.release();
    return {};
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot start %s: %s", plugin,
                         error.what());
  }
}

}  // namespace engine::kit
