#include "tests/emulated_cuda/nccl/fake_comm.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "kit/reduce.h"
#include "tests/emulated_cuda/runtime.h"

using fake_nccl::Call;
using fake_nccl::Kind;
using fake_nccl::kStageBytes;
using fake_nccl::Operation;
using fake_nccl::Slot;
using fake_nccl::SplitRequest;

namespace {

// The element that ncclDataType_t `type` is; nothing for one that the fake does not know.
std::optional<engine::DType> ElementOf(int32_t type) {
  switch (type) {
    case ncclFloat32:
      return engine::DType::kFloat32;
    case ncclInt32:
      return engine::DType::kInt32;
    case ncclUint8:
      return engine::DType::kUint8;
    case ncclBfloat16:
      return engine::DType::kBFloat16;
    case ncclFloat16:
      return engine::DType::kFloat16;
    default:
      return std::nullopt;
  }
}

// target = sources[0] op sources[1] op ..., from left to right.
void Reduce(const Call& call, const uint8_t* const* sources, int ranks, size_t count,
            uint8_t* target) {
  const auto reduction = call.operation == ncclMax   ? engine::Reduction::kMax
                         : call.operation == ncclMin ? engine::Reduction::kMin
                                                     : engine::Reduction::kSum;
  const engine::kit::ReduceKernels& kernels =
      engine::kit::kReduceKernels.For(*ElementOf(call.type), reduction);
  std::vector<uint8_t> sums(count * kernels.accumulator_bytes);
  kernels.load(sums.data(), sources[0], count);
  for (int r = 1; r < ranks; ++r) kernels.fold(sums.data(), sources[r], count);
  kernels.store(target, sums.data(), count);
}

// FNV-1a over what ranks must have alike.
uint64_t DigestOf(const std::vector<Operation>& operations) {
  uint64_t digest = 0xcbf29ce484222325u;
  for (const Operation& operation : operations) {
    const Call& call = operation.call;
    for (const uint64_t value :
         {static_cast<uint64_t>(call.kind), static_cast<uint64_t>(call.type),
          static_cast<uint64_t>(call.operation), static_cast<uint64_t>(call.root), call.count}) {
      digest = (digest ^ value) * 0x100000001b3u;
    }
  }
  return digest;
}

}  // namespace

namespace fake_nccl {

Group& CurrentGroup() {
  static thread_local Group group;
  return group;
}

ncclResult_t Group::Refuse(ncclResult_t result) {
  if (open() && error_ == ncclSuccess) error_ = result;
  return result;
}

void Group::Add(const Operation& operation) {
  if (!operations_.empty() && (operations_.front().comm != operation.comm ||
                               operations_.front().stream != operation.stream)) {
    std::fprintf(stderr, "fake NCCL: a group over several communicators or streams\n");
    std::abort();
  }
  operations_.push_back(operation);
}

ncclResult_t Group::End() {
  if (depth_ == 0) return ncclInvalidUsage;
  if (--depth_ > 0) return ncclSuccess;
  std::vector<Operation> operations = std::exchange(operations_, {});
  const ncclResult_t error = std::exchange(error_, ncclSuccess);
  if (error != ncclSuccess || operations.empty()) return error;
  ncclComm* const comm = operations.front().comm;
  return comm->Begin(std::move(operations));
}

}  // namespace fake_nccl

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
  fake_nccl::Group& group = fake_nccl::CurrentGroup();
  if (phase_ != Phase::kReady) return group.Refuse(ncclInvalidArgument);  // before it was ready
  if (!ElementOf(type) || operation > ncclMin || operation == ncclProd) {
    return group.Refuse(ncclInvalidArgument);
  }
  if (faults_.refuse.Is(rank_, calls_)) return group.Refuse(ncclInvalidUsage);
  const Operation called{.comm = this,
                         .call = {.kind = static_cast<int32_t>(kind),
                                  .type = type,
                                  .operation = operation,
                                  .root = root,
                                  .count = count},
                         .send = static_cast<const uint8_t*>(send),
                         .recv = static_cast<uint8_t*>(recv),
                         .stream = stream,
                         .absent = faults_.absent.Is(rank_, calls_)};
  ++calls_;
  if (faults_.error.Is(rank_, calls_)) async_error_ = ncclSystemError;
  if (faults_.remote.Is(rank_, calls_)) async_error_ = ncclRemoteError;
  if (!group.open()) return Take({called});
  group.Add(called);
  return ncclSuccess;
}

ncclResult_t ncclComm::Begin(std::vector<Operation> operations) {
  const Inside inside(*this);
  if (phase_ != Phase::kReady) return ncclInvalidArgument;
  const uint64_t digest = DigestOf(operations);
  for (Operation& operation : operations) {
    operation.call.group_size = operations.size();
    operation.call.group_digest = digest;
  }
  return Take(std::move(operations));
}

// The real one, where it does not block, takes a call between several ranks by a thread of its own,
// which needs time.
ncclResult_t ncclComm::Take(std::vector<Operation> operations) {
  polls_left_ = faults_.busy ? -1 : static_cast<int>(1 + (calls_ - 1) % 3);
  if (ranks_ == 1) return Launch(std::move(operations));
  // The first ones connect ranks.
  taken_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(calls_ < 3 ? 3 : 0);
  launching_ = std::move(operations);
  phase_ = Phase::kLaunch;
  return ncclInProgress;
}

ncclResult_t ncclComm::Launch(std::vector<Operation> operations) {
  std::erase_if(operations, [](const Operation& operation) { return operation.call.count == 0; });
  if (operations.empty()) return ncclSuccess;
  const cudaStream_t stream = operations.front().stream;
  references_.fetch_add(1);
  auto* const kept = new std::vector<Operation>(std::move(operations));
  const cudaError_t queued = emulated_cuda_enqueue(stream, {RunOnStream, Forget, kept});
  return queued == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclComm::Split(int color, int key, ncclComm** out) {
  const Inside inside(*this);
  if (phase_ != Phase::kReady || color < NCCL_SPLIT_NOCOLOR) return ncclInvalidArgument;
  *out = nullptr;
  child_out_ = out;
  Slot& own = segment_->slot(rank_);
  own.requests[(splits_ + 1) % 2] = {color, key};
  own.splits.store(++splits_);
  phase_ = Phase::kSplit;
  polls_left_ = 1;
  return ncclInProgress;
}

bool ncclComm::HaveRequests() {
  for (int r = 0; r < ranks_; ++r) {
    if (segment_->slot(r).splits.load() < splits_) return false;
  }
  return true;
}

// When all requests are there.
ncclResult_t ncclComm::MakeChild() {
  const auto request_of = [this](int r) { return segment_->slot(r).requests[splits_ % 2]; };
  const SplitRequest own = request_of(rank_);
  if (own.color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  int rank = 0, ranks = 0;
  for (int r = 0; r < ranks_; ++r) {
    const SplitRequest request = request_of(r);
    if (request.color != own.color) continue;
    ++ranks;
    if (request.key < own.key || (request.key == own.key && r < rank_)) ++rank;
  }
  auto segment = segment_->JoinPart(splits_, own.color, rank);
  if (segment == nullptr) return ncclSystemError;
  *child_out_ = new ncclComm(rank, ranks, std::move(segment), fake_nccl::ReadFaults());
  return ncclSuccess;
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
  if (phase_ == Phase::kSplit && (faults_.split || !HaveRequests())) return false;
  if (phase_ == Phase::kLaunch && std::chrono::steady_clock::now() < taken_) return false;
  if (polls_left_ < 0 || --polls_left_ > 0) return false;
  if (phase_ == Phase::kLaunch) {
    const ncclResult_t launched = Launch(std::move(launching_));
    if (launched != ncclSuccess) async_error_ = launched;
  }
  if (phase_ == Phase::kSplit) {
    const ncclResult_t made = MakeChild();
    if (made != ncclSuccess) async_error_ = made;
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
    if (rank_ == 0 || segment_->is_part()) segment_->Unlink();
  }
  Unreference();
}

void ncclComm::Unreference() {
  if (references_.fetch_sub(1) == 1) delete this;
}

// Again for each launch of a graph that it is part of.
cudaError_t ncclComm::RunOnStream(void* operations) {
  const auto& kept = *static_cast<std::vector<Operation>*>(operations);
  for (auto last = kept.rbegin(); last != kept.rend(); ++last) last->comm->Run(*last);
  return cudaSuccess;
}

void ncclComm::Forget(void* operations) {
  const std::unique_ptr<std::vector<Operation>> kept(
      static_cast<std::vector<Operation>*>(operations));
  kept->front().comm->Unreference();
}

void ncclComm::Run(const Operation& operation) {
  const Call& call = operation.call;
  const size_t size = engine::SizeOf(*ElementOf(call.type));
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
  running_ = call;
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
          Reduce(call, sources, ranks_, part / size, to);
          break;
      }
      if (!Meet()) return;  // stages may be written again
    }
  }
}

// Whether all ranks have come to this round of the same call; false after an abort.
bool ncclComm::Meet() {
  const uint64_t round = ++round_;
  segment_->slot(rank_).calls[round % 2] = running_;
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
  for (int r = 0; r < ranks_; ++r) {
    Slot& other = segment_->slot(r);
    const uint64_t reached = other.round.load(std::memory_order_acquire);
    if (reached < round) return false;
    // One that is ahead was here and has gone on, so it had the same call.
    const Call& call = other.calls[round % 2];
    if (reached > round || call == running_) continue;
    const bool grouped = call.group_size > 1 || running_.group_size > 1;
    if (grouped) async_error_ = ncclInvalidUsage;
    return false;
  }
  return true;
}
