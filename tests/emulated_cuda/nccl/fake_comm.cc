#include "tests/emulated_cuda/nccl/fake_comm.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/emulated_cuda/nccl/arithmetic.h"

using fake_nccl::Call;
using fake_nccl::Kind;
using fake_nccl::kStageBytes;
using fake_nccl::Operation;
using fake_nccl::Slot;

// Proves that one thread at a time is in a communicator.
class ncclComm::Inside {
 public:
  explicit Inside(ncclComm& comm) : comm_(comm) {
    if (comm_.inside_.fetch_add(1) == 0) return;
    std::fprintf(stderr, "fake NCCL: two threads in one communicator\n");
    std::abort();
  }
  ~Inside() { comm_.inside_.fetch_sub(1); }

 private:
  ncclComm& comm_;
};

ncclResult_t ncclComm::Collective(Kind kind, const void* send, void* recv, size_t count,
                                  ncclDataType_t type, ncclRedOp_t operation, int root,
                                  cudaStream_t stream) {
  const Inside inside(*this);
  if (phase_ != Phase::kReady) return ncclInvalidArgument;  // used before it was ready
  if (fake_nccl::SizeOf(type) == 0 || operation > ncclMin || operation == ncclProd) {
    return ncclInvalidArgument;
  }
  launching_ = {.comm = this,
                .call = {.kind = static_cast<int32_t>(kind),
                         .type = type,
                         .operation = operation,
                         .root = root,
                         .count = count},
                .send = static_cast<const uint8_t*>(send),
                .recv = static_cast<uint8_t*>(recv),
                .stream = stream,
                .absent = faults_.absent.Is(rank_, calls_)};
  const int64_t call = calls_++;
  if (faults_.error.Is(rank_, calls_)) async_error_ = ncclSystemError;
  if (faults_.remote.Is(rank_, calls_)) async_error_ = ncclRemoteError;
  // NCCL takes some at once, and some in a thread that needs time.
  polls_left_ = faults_.busy ? -1 : static_cast<int>(call % 3);
  if (polls_left_ == 0 || ranks_ == 1) return Launch(launching_);
  phase_ = Phase::kLaunch;
  return ncclInProgress;
}

ncclResult_t ncclComm::Launch(const Operation& operation) {
  if (operation.call.count == 0) return ncclSuccess;
  void* const kept = std::malloc(sizeof(Operation));
  std::memcpy(kept, &operation, sizeof(Operation));
  references_.fetch_add(1);
  if (cudaLaunchHostFunc(operation.stream, RunOnStream, kept) == cudaSuccess) return ncclSuccess;
  std::free(kept);
  references_.fetch_sub(1);
  return ncclUnhandledCudaError;
}

ncclResult_t ncclComm::AsyncError(ncclResult_t* state) {
  const Inside inside(*this);
  const auto error = static_cast<ncclResult_t>(async_error_.load());
  *state = error != ncclSuccess ? error : ncclInProgress;
  if (error != ncclSuccess || !Progress()) return ncclSuccess;
  *state = ncclSuccess;
  return ncclSuccess;
}

// Whether nothing is under way any more.
bool ncclComm::Progress() {
  if (phase_ == Phase::kReady || phase_ == Phase::kFinal) return true;
  if (phase_ == Phase::kInit && (faults_.init || !Joined())) return false;
  if (phase_ == Phase::kWindow && !HaveWindows()) return false;
  if (polls_left_ < 0 || --polls_left_ > 0) return false;
  if (phase_ == Phase::kLaunch) {
    const ncclResult_t launched = Launch(launching_);
    if (launched != ncclSuccess) async_error_ = launched;
  }
  if (phase_ == Phase::kWindow) *window_out_ = reinterpret_cast<ncclWindow_t>(this);
  phase_ = phase_ == Phase::kFinalize ? Phase::kFinal : Phase::kReady;
  return true;
}

bool ncclComm::Joined() {
  for (int r = 0; r < ranks_; ++r) {
    if (segment_->slot(r).joined.load() == 0) return false;
  }
  if (rank_ == 0) segment_->Unlink();
  return true;
}

bool ncclComm::HaveWindows() {
  for (int r = 0; r < ranks_; ++r) {
    if (segment_->slot(r).windows.load() < windows_) return false;
  }
  return true;
}

ncclResult_t ncclComm::Finalize() {
  const Inside inside(*this);
  if (phase_ != Phase::kReady) return ncclInvalidArgument;
  phase_ = Phase::kFinalize;
  polls_left_ = 2;
  return ncclInProgress;
}

ncclResult_t ncclComm::RegisterWindow(ncclWindow_t* window) {
  const Inside inside(*this);
  if (phase_ != Phase::kReady) return ncclInvalidArgument;
  segment_->slot(rank_).windows.store(++windows_);
  window_out_ = window;
  phase_ = Phase::kWindow;
  polls_left_ = 1;
  return ncclInProgress;
}

void ncclComm::End(bool abort) {
  {
    const Inside inside(*this);
    if (!abort && phase_ != Phase::kFinal) {
      std::fprintf(stderr, "fake NCCL: destroyed before it was finalized\n");
      std::abort();
    }
    aborted_.store(true);
    segment_->slot(rank_).left.store(1);
    if (rank_ == 0) segment_->Unlink();
  }
  Unreference();
}

void ncclComm::Unreference() {
  if (references_.fetch_sub(1) == 1) delete this;
}

void ncclComm::RunOnStream(void* operation) {
  Operation kept;
  std::memcpy(&kept, operation, sizeof(kept));
  std::free(operation);
  kept.comm->Run(kept);
  kept.comm->Unreference();
}

void ncclComm::Run(const Operation& operation) {
  const Call& call = operation.call;
  const size_t size = fake_nccl::SizeOf(static_cast<ncclDataType_t>(call.type));
  const size_t bytes = call.count * size;
  const auto kind = static_cast<Kind>(call.kind);
  if (operation.absent) {
    while (!aborted_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  if (ranks_ == 1) {
    if (operation.send != operation.recv) std::memmove(operation.recv, operation.send, bytes);
    return;
  }
  segment_->slot(rank_).call = call;
  const int slices = kind == Kind::kReduceScatter ? ranks_ : 1;
  for (int slice = 0; slice < slices; ++slice) {
    for (size_t at = 0; at < bytes; at += kStageBytes) {
      const size_t part = std::min(kStageBytes, bytes - at);
      const size_t from = static_cast<size_t>(slice) * bytes + at;
      const bool brings = kind != Kind::kBroadcast || call.root == rank_;
      Slot& own = segment_->slot(rank_);
      if (brings) std::memcpy(own.stage, operation.send + from, part);
      if (!Meet()) return;
      const uint8_t* sources[fake_nccl::kMaxRanks];
      for (int r = 0; r < ranks_; ++r) sources[r] = segment_->slot(r).stage;
      uint8_t* const to = operation.recv + at;
      switch (kind) {
        case Kind::kAllGather:
          for (int r = 0; r < ranks_; ++r) {
            std::memcpy(to + static_cast<size_t>(r) * bytes, sources[r], part);
          }
          break;
        case Kind::kBroadcast:
          std::memcpy(to, sources[call.root], part);
          break;
        case Kind::kReduceScatter:
          if (slice != rank_) break;
          [[fallthrough]];
        case Kind::kAllReduce:
          fake_nccl::Reduce(static_cast<ncclDataType_t>(call.type),
                            static_cast<ncclRedOp_t>(call.operation), sources, ranks_, part / size,
                            to);
          break;
      }
      if (!Meet()) return;  // stages may be written again
    }
  }
}

// Whether all ranks have come to this round of the same call; false after an abort.
bool ncclComm::Meet() {
  const uint64_t round = ++round_;
  segment_->slot(rank_).round.store(round, std::memory_order_release);
  for (int looks = 0; !aborted_.load(); ++looks) {
    if (AllThere(round)) return true;
    if (looks < 20) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (looks % 100 != 0) continue;
    for (int r = 0; r < ranks_; ++r) {
      if (segment_->Died(r)) async_error_ = ncclRemoteError;
    }
  }
  return false;
}

bool ncclComm::AllThere(uint64_t round) {
  const Call& own = segment_->slot(rank_).call;
  for (int r = 0; r < ranks_; ++r) {
    Slot& other = segment_->slot(r);
    const uint64_t reached = other.round.load(std::memory_order_acquire);
    if (reached < round) return false;
    // One that is ahead was here and has gone on, so it had the same call.
    if (reached == round && !(other.call == own)) return false;
  }
  return true;
}
