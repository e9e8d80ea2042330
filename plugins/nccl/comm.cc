#include "comm.h"

#include <algorithm>

#include "engine/ext/sub_groups.h"

namespace engine::nccl {
namespace {

ncclDataType_t TypeOf(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kInt32:
      return ncclInt32;
    case DType::kUint8:
      return ncclUint8;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
  }
  return ncclFloat32;
}

ncclRedOp_t OperationOf(Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::kSum:
      return ncclSum;
    case Reduction::kMax:
      return ncclMax;
    case Reduction::kMin:
      return ncclMin;
  }
  return ncclSum;
}

}  // namespace

ncclResult_t Comm::Call(const Transfer& transfer, void* token, cudaStream_t stream) noexcept {
  const Functions& call = library_->functions();
  const ncclDataType_t type = TypeOf(transfer.dtype);
  const ncclRedOp_t operation = OperationOf(transfer.reduction);
  const auto count = static_cast<size_t>(transfer.count);
  // The root of a broadcast may have nowhere to put what it has already.
  void* const recv = transfer.recv != nullptr ? transfer.recv : const_cast<void*>(transfer.send);
  switch (transfer.kind) {
    case TransferKind::kAllReduce:
      return call.AllReduce(transfer.send, recv, count, type, operation, comm_, stream);
    case TransferKind::kReduceScatter:
      return call.ReduceScatter(transfer.send, recv, count, type, operation, comm_, stream);
    case TransferKind::kAllGather:
      return call.AllGather(transfer.send, recv, count, type, comm_, stream);
    case TransferKind::kBroadcast:
      return call.Broadcast(transfer.send, recv, count, type, transfer.root, comm_, stream);
    case TransferKind::kBarrier:
      return call.AllReduce(token, token, 1, ncclInt32, ncclMax, comm_, stream);
    case TransferKind::kPush:
    case TransferKind::kPull:
      break;  // refused by the communicator
  }
  return ncclInvalidArgument;
}

// A group that was started must be ended, whatever comes in between. What of it needs time is told
// by the end alone.
Status Comm::Start(Array<const Transfer> transfers, void* token, cudaStream_t stream) noexcept {
  const auto moves = [](const Transfer& transfer) {
    return transfer.count > 0 || transfer.kind == TransferKind::kBarrier;
  };
  if (std::none_of(transfers.begin(), transfers.end(), moves)) return {};
  if (transfers.size() == 1) {
    return Track(Call(transfers[0], token, stream), Name(transfers[0].kind));
  }
  const Functions& call = library_->functions();
  ENGINE_RETURN_IF_ERROR(library_->ToStatus(call.GroupStart(), "starting a group", comm_));
  Status status;
  for (const Transfer& transfer : transfers) {
    if (!moves(transfer)) continue;
    status = library_->ToStatus(Call(transfer, token, stream), Name(transfer.kind), comm_);
    if (!status.ok()) break;
  }
  const Status ended = Track(call.GroupEnd(), "a group of transfers");
  return status.ok() ? ended : status;
}

// In progress is no error: the mutex is released, and whoever comes next has to Poll first.
Status Comm::Track(ncclResult_t result, const char* what) noexcept {
  busy_ = result == ncclInProgress;
  return library_->ToStatus(result, what, comm_);
}

Status Comm::Poll(const char* what) noexcept {
  if (aborted()) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = library_->functions().CommGetAsyncError(comm_, &state);
  return Track(asked == ncclSuccess ? state : asked, what);
}

Status Comm::Register(void* memory, size_t size_bytes, bool symmetric, Registration* out) noexcept {
  const Functions& call = library_->functions();
  if (symmetric) {
    return Track(
        call.CommWindowRegister(comm_, memory, size_bytes, &out->window, NCCL_WIN_COLL_SYMMETRIC),
        "registering a window");
  }
  return Track(call.CommRegister(comm_, memory, size_bytes, &out->handle), "registering memory");
}

// The results are of no use: the memory goes in any case.
void Comm::Deregister(const Registration& registration) noexcept {
  if (aborted()) return;
  const Functions& call = library_->functions();
  if (registration.handle != nullptr && call.CommDeregister != nullptr) {
    (void)call.CommDeregister(comm_, registration.handle);
  }
  if (registration.window != nullptr && call.CommWindowDeregister != nullptr) {
    (void)call.CommWindowDeregister(comm_, registration.window);
  }
}

Status Comm::Split(int color, int key, ncclConfig_t config) noexcept {
  const int nccl_color = color == kNoColor ? NCCL_SPLIT_NOCOLOR : color;
  return Track(library_->functions().CommSplit(comm_, nccl_color, key, &child_, &config),
               "splitting a communicator");
}

// NCCL joins a split that is under way, which then leaves its child, whole or not.
void Comm::Abort() noexcept {
  if (aborted()) return;
  (void)library_->functions().CommAbort(comm_);
  comm_ = nullptr;
  if (child_ != nullptr) (void)library_->functions().CommAbort(TakeChild());
  busy_ = false;
}

Status Comm::Finish() noexcept {
  return Track(library_->functions().CommFinalize(comm_), "the end of the communicator");
}

void Comm::Destroy() noexcept {
  if (aborted()) return;
  (void)library_->functions().CommDestroy(comm_);
  comm_ = nullptr;
  busy_ = false;
}

}  // namespace engine::nccl
