#include "collectives.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "kit/reduce.h"

namespace engine::mpi {
namespace {

constexpr int kFarewellTag = 1;
constexpr size_t kHead = sizeof(kit::TransferId);
constexpr size_t kMostStaged = 4 << 20;  // bytes of all messages of a chunk
// Of one message, and of those of all ranks, of an all-reduce that is an all-gather.
constexpr size_t kMostGathered = 2 << 10, kMostGatheredInAll = 64 << 10;
constexpr int kLooks = 16;  // at a request, before anything else is looked at
// A thread spins, then yields, then sleeps. Ranks that have all come to a transfer are at work; until
// then they may compute.
constexpr std::chrono::microseconds kSpinTime(50), kYieldTime(1000), kSleep(50);
constexpr std::chrono::milliseconds kFarewellTime(200);

MPI_Datatype TypeOf(DType dtype) {
  if (dtype == DType::kFloat32) return MPI_FLOAT;
  if (dtype == DType::kInt32) return MPI_INT32_T;
  return dtype == DType::kUint8 ? MPI_UINT8_T : MPI_UINT16_T;
}

template <DType kDType, Reduction kReduction>
void Combine(void* in, void* inout, int* count, MPI_Datatype*) {
  kit::kReduceKernels.For(kDType, kReduction)
      .combine(inout, in, inout, static_cast<size_t>(*count));
}

template <DType kDType>
void CreateOperations(MPI_Op (&operations)[3]) {
  MPI_Op_create(Combine<kDType, Reduction::kSum>, 1, &operations[0]);
  MPI_Op_create(Combine<kDType, Reduction::kMax>, 1, &operations[1]);
  MPI_Op_create(Combine<kDType, Reduction::kMin>, 1, &operations[2]);
}

void Copy(void* to, const void* from, size_t bytes) noexcept {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Where the chunk begins in a buffer.
template <typename Chunk>
const std::byte* At(const void* buffer, const Transfer& transfer, const Chunk& chunk) noexcept {
  const size_t first = static_cast<size_t>(chunk.first) * SizeOf(transfer.dtype);
  return static_cast<const std::byte*>(buffer) + (buffer == nullptr ? 0 : first);
}

}  // namespace

// Spinning helps only who has a core to itself.
Collectives::Collectives(Library& library, MPI_Comm comm, const RankInfo& ranks,
                         const Settings& settings, kit::Progress& progress)
    : library_(library),
      comm_(comm),
      ranks_(ranks),
      size_(static_cast<size_t>(ranks.world_size)),
      message_bytes_(std::max<size_t>(
          std::min(settings.message_bytes, kMostStaged / size_) & ~size_t{63}, 64)),
      mpi_reduces_(settings.mpi_reduces),
      has_core_(static_cast<int>(std::thread::hardware_concurrency()) >= ranks.local_world_size),
      progress_(progress),
      memory_(std::make_unique<Memory>()) {
  memory_->farewells.resize(size_, MPI_REQUEST_NULL);
  memory_->ids.resize(size_);
  for (Chunk& chunk : memory_->chunks) {
    chunk.sent.resize(size_ * (kHead + message_bytes_));
    chunk.received.resize(size_ * (kHead + message_bytes_));
    chunk.counts.resize(size_);
    chunk.starts.resize(size_);
  }
  library_.Call([&] {
    CreateOperations<DType::kBFloat16>(operations_[0]);
    CreateOperations<DType::kFloat16>(operations_[1]);
    return MPI_SUCCESS;
  });
}

// Of a broken communicator nothing is given back: another one with its number would receive what
// was meant for this one.
Collectives::~Collectives() {
  if (broken_) {
    (void)memory_.release();
    return;
  }
  library_.Call([&] {
    for (auto& of_type : operations_) {
      for (MPI_Op& operation : of_type) MPI_Op_free(&operation);
    }
    return MPI_Comm_free(&comm_);
  });
}

Status Collectives::Run(kit::PooledWork& work) noexcept {
  running_ = true;
  work.MarkStarted();
  Status status = Move(work.transfer());
  if (!status.ok()) broken_ = true;
  running_ = false;
  return status;
}

// Two chunks are under way: the first half of one beside the second half of the one before. All
// ranks start their collectives in this order.
Status Collectives::Move(const Transfer& transfer) noexcept {
  auto& chunks = memory_->chunks;
  Shape(transfer, chunks[0], 0);
  const bool opens = chunks[0].head == 0;  // no message has an id
  MPI_Request opening = MPI_REQUEST_NULL;
  if (opens) {
    memory_->ids[static_cast<size_t>(ranks_.rank)] = kit::IdOf(transfer);
    ENGINE_RETURN_IF_ERROR(StatusOf(library_.Call([&] {
      return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, memory_->ids.data(), kHead, MPI_BYTE, comm_,
                            &opening);
    })));
  }
  ENGINE_RETURN_IF_ERROR(Start(transfer, chunks[0]));
  if (opens) {
    ENGINE_RETURN_IF_ERROR(Wait(&opening, false));
    ENGINE_RETURN_IF_ERROR(CheckIds(transfer, memory_->ids.data(), kHead));
  }
  for (int64_t number = 0;; ++number) {
    Chunk &chunk = chunks[number % 2], &next = chunks[(number + 1) % 2];
    const int64_t end = chunk.first + chunk.count;
    const bool is_last = transfer.kind == TransferKind::kBarrier || end == transfer.count;
    if (!is_last) {
      Shape(transfer, next, end);
      ENGINE_RETURN_IF_ERROR(Start(transfer, next));
    }
    ENGINE_RETURN_IF_ERROR(Wait(&chunk.request, opens || number > 0));
    ENGINE_RETURN_IF_ERROR(Finish(transfer, chunk));
    progress_.Moved(chunk.stride * size_);
    if (is_last) return {};
  }
}

Collectives::Way Collectives::WayOf(const Transfer& transfer) const noexcept {
  const size_t bytes = kit::SizeBytes(transfer);
  const bool small = bytes <= std::min({kMostGathered, kMostGatheredInAll / size_, message_bytes_});
  if (bytes == 0 || transfer.kind == TransferKind::kAllGather) return Way::kGather;
  if (transfer.kind == TransferKind::kBroadcast) return Way::kBroadcast;
  if (mpi_reduces_) return Way::kMpiReduces;
  return transfer.kind == TransferKind::kAllReduce && small ? Way::kGather : Way::kExchange;
}

void Collectives::Shape(const Transfer& transfer, Chunk& chunk, int64_t first) const noexcept {
  const size_t element = SizeOf(transfer.dtype), bytes = kit::SizeBytes(transfer);
  const bool of_each =
      transfer.kind == TransferKind::kReduceScatter || transfer.kind == TransferKind::kAllGather;
  const auto most = static_cast<int64_t>(message_bytes_ / element * (of_each ? 1 : size_));
  chunk.way = WayOf(transfer);
  chunk.first = first;
  chunk.count = bytes == 0 ? 0 : std::min(most, transfer.count - first);
  chunk.bytes = static_cast<size_t>(chunk.count) * element;
  chunk.cut = chunk.way != Way::kGather && !of_each;
  const size_t each = (chunk.bytes / element + size_ - 1) / size_ * element;
  chunk.slice = chunk.cut ? each : chunk.bytes;
  chunk.part = chunk.cut ? each : bytes;
  chunk.head = chunk.way == Way::kGather || chunk.way == Way::kExchange ? kHead : 0;
  chunk.stride = chunk.head + chunk.slice;
}

size_t Collectives::Chunk::SliceOf(size_t rank) const noexcept {
  return cut ? std::min(slice, bytes - std::min(rank * slice, bytes)) : slice;
}

// What a rank sends to itself stays in its buffer.
void Collectives::Pack(const Transfer& transfer, Chunk& chunk) noexcept {
  const kit::TransferId id = kit::IdOf(transfer);
  const auto* const from = At(transfer.send, transfer, chunk);
  for (size_t rank = 0; rank < size_; ++rank) {
    const bool is_own = rank == static_cast<size_t>(ranks_.rank);
    if (chunk.way == Way::kGather && !is_own) continue;
    if (chunk.way == Way::kExchange && is_own) continue;
    auto& messages = chunk.way == Way::kGather ? chunk.received : chunk.sent;
    std::byte* const message = messages.data() + rank * chunk.stride;
    Copy(message, &id, chunk.head);
    Copy(message + chunk.head, from + (chunk.way == Way::kGather ? 0 : rank * chunk.part),
         chunk.SliceOf(rank));
  }
}

Status Collectives::Start(const Transfer& transfer, Chunk& chunk) noexcept {
  const bool sends = chunk.way != Way::kBroadcast || transfer.root == ranks_.rank;
  if (sends) Pack(transfer, chunk);
  std::byte *const sent = chunk.sent.data(), *const received = chunk.received.data();
  const int count = static_cast<int>(chunk.count), stride = static_cast<int>(chunk.stride);
  const MPI_Datatype type = TypeOf(transfer.dtype);
  MPI_Request* const request = &chunk.request;
  return StatusOf(library_.Call([&] {
    if (chunk.way == Way::kGather) {
      return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, received, stride, MPI_BYTE, comm_, request);
    }
    if (chunk.way == Way::kBroadcast) {
      return MPI_Ibcast(sent, count, type, transfer.root, comm_, request);
    }
    if (chunk.way == Way::kExchange) {
      for (size_t rank = 0; rank < size_; ++rank) {
        chunk.starts[rank] = static_cast<int>(rank) * stride;
        chunk.counts[rank] = rank == static_cast<size_t>(ranks_.rank) ? 0 : stride;
      }
      const int *const counts = chunk.counts.data(), *const starts = chunk.starts.data();
      return MPI_Ialltoallv(sent, counts, starts, MPI_BYTE, received, counts, starts, MPI_BYTE,
                            comm_, request);
    }
    const MPI_Op operation = OperationOf(transfer);
    if (transfer.kind == TransferKind::kAllReduce) {
      return MPI_Iallreduce(sent, received, count, type, operation, comm_, request);
    }
    return MPI_Ireduce_scatter_block(sent, received, count, type, operation, comm_, request);
  }));
}

Status Collectives::Finish(const Transfer& transfer, Chunk& chunk) noexcept {
  std::byte *const sent = chunk.sent.data(), *const received = chunk.received.data();
  if (chunk.head > 0) ENGINE_RETURN_IF_ERROR(CheckIds(transfer, received, chunk.stride));
  if (chunk.bytes == 0 || transfer.recv == nullptr) return {};
  auto* const to = const_cast<std::byte*>(At(transfer.recv, transfer, chunk));
  const auto rank = static_cast<size_t>(ranks_.rank);
  const std::byte* const own = At(transfer.send, transfer, chunk);
  switch (chunk.way) {
    case Way::kMpiReduces:
      Copy(to, received, chunk.bytes);
      return {};
    case Way::kBroadcast:
      if (own != to || transfer.root != ranks_.rank) Copy(to, sent, chunk.bytes);
      return {};
    case Way::kGather:
      if (transfer.kind == TransferKind::kAllReduce) {
        Reduce(transfer, chunk, own, to, chunk.bytes);
      } else {
        Unpack(chunk, received, to);
      }
      return {};
    case Way::kExchange:
      break;
  }
  if (transfer.kind == TransferKind::kReduceScatter) {
    Reduce(transfer, chunk, own + rank * chunk.part, to, chunk.bytes);
    return {};
  }
  std::byte* const sum = sent + rank * chunk.stride + kHead;
  Reduce(transfer, chunk, own + rank * chunk.slice, sum, chunk.SliceOf(rank));
  ENGINE_RETURN_IF_ERROR(StatusOf(library_.Call([&] {
    return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, sent, static_cast<int>(chunk.stride), MPI_BYTE,
                          comm_, &chunk.request);
  })));
  ENGINE_RETURN_IF_ERROR(Wait(&chunk.request, true));
  Unpack(chunk, sent, to);
  return {};
}

void Collectives::Unpack(const Chunk& chunk, const std::byte* messages,
                         std::byte* to) const noexcept {
  for (size_t rank = 0; rank < size_; ++rank) {
    Copy(to + rank * chunk.part, messages + rank * chunk.stride + chunk.head, chunk.SliceOf(rank));
  }
}

Status Collectives::CheckIds(const Transfer& transfer, const void* messages,
                             size_t stride) const noexcept {
  const kit::TransferId own = kit::IdOf(transfer);
  for (int32_t rank = 0; rank < ranks_.world_size; ++rank) {
    if (rank == ranks_.rank) continue;
    kit::TransferId theirs;
    std::memcpy(&theirs,
                static_cast<const std::byte*>(messages) + static_cast<size_t>(rank) * stride,
                kHead);
    if (!Agree(own, theirs)) return Disagreement(own, theirs, rank);
  }
  return {};
}

void Collectives::Reduce(const Transfer& transfer, const Chunk& chunk, const std::byte* own,
                         std::byte* out, size_t bytes) const noexcept {
  const kit::ReduceKernels& kernels = kit::kReduceKernels.For(transfer.dtype, transfer.reduction);
  const auto slice_of = [&](size_t rank) {
    const bool is_own = rank == static_cast<size_t>(ranks_.rank);
    return is_own ? own : chunk.received.data() + rank * chunk.stride + kHead;
  };
  constexpr size_t kAtOnce = 1024;
  alignas(64) std::byte sums[kAtOnce * kit::kMaxAccumulatorBytes];
  const size_t element = SizeOf(transfer.dtype), count = bytes / element;
  if (size_ == 2) return kernels.combine(out, slice_of(0), slice_of(1), count);
  for (size_t begin = 0; begin < count; begin += kAtOnce) {
    const size_t elements = std::min(kAtOnce, count - begin), at = begin * element;
    kernels.load(sums, slice_of(0) + at, elements);
    for (size_t rank = 1; rank < size_; ++rank) kernels.fold(sums, slice_of(rank) + at, elements);
    kernels.store(out + at, sums, elements);
  }
}

MPI_Op Collectives::OperationOf(const Transfer& transfer) const noexcept {
  constexpr MPI_Op kOfMpi[] = {MPI_SUM, MPI_MAX, MPI_MIN};
  const auto reduction = static_cast<size_t>(transfer.reduction);
  if (transfer.dtype == DType::kBFloat16) return operations_[0][reduction];
  return transfer.dtype == DType::kFloat16 ? operations_[1][reduction] : kOfMpi[reduction];
}

// MPI moves what is looked at. Deadlines are the lane's, which stops it.
Status Collectives::Wait(MPI_Request* request, bool all_came) noexcept {
  const kit::Clock::time_point begun = kit::Clock::now();
  while (true) {
    int done = 0;
    const int error = library_.Call([&] {
      int failed = MPI_SUCCESS;
      for (int look = 0; look < kLooks && done == 0 && failed == MPI_SUCCESS; ++look) {
        failed = MPI_Test(request, &done, MPI_STATUS_IGNORE);
      }
      return failed;
    });
    ENGINE_RETURN_IF_ERROR(StatusOf(error));
    if (done != 0) return {};
    if (stopped_) return Status::Error(StatusCode::kAborted, "the communicator was stopped");
    const auto waited = kit::Clock::now() - begun;
    if (has_core_ && waited < (all_came ? kYieldTime : kSpinTime)) continue;
    if (waited < kYieldTime) {
      std::this_thread::yield();
      continue;
    }
    ENGINE_RETURN_IF_ERROR(CheckFarewells());
    std::this_thread::sleep_for(kSleep);
  }
}

Status Collectives::CheckFarewells() noexcept {
  int leaves = 0;
  MPI_Status from{};
  ENGINE_RETURN_IF_ERROR(StatusOf(library_.Call(
      [&] { return MPI_Iprobe(MPI_ANY_SOURCE, kFarewellTag, comm_, &leaves, &from); })));
  if (leaves == 0) return {};
  return Status::Error(StatusCode::kPeerLost, "rank %d gave up", from.MPI_SOURCE)
      .WithRank(from.MPI_SOURCE);
}

// Over networks a first message waits for a connection, which MPI makes while requests are looked
// at.
void Collectives::Stop(bool tells) noexcept {
  stopped_ = true;
  if (!tells) return;
  broken_ = true;
  for (int peer = 0; peer < ranks_.world_size; ++peer) {
    if (peer == ranks_.rank) continue;
    library_.Call([&] {
      return MPI_Isend(nullptr, 0, MPI_BYTE, peer, kFarewellTag, comm_,
                       &memory_->farewells[static_cast<size_t>(peer)]);
    });
  }
  const kit::Clock::time_point end = kit::Clock::now() + kFarewellTime;
  for (int done = 0; done == 0 && kit::Clock::now() < end;) {
    library_.Call([&] {
      return MPI_Testall(ranks_.world_size, memory_->farewells.data(), &done, MPI_STATUSES_IGNORE);
    });
  }
}

#ifdef MPIX_ERR_PROC_FAILED
int32_t Collectives::FirstDead() const noexcept {
  int32_t rank = -1;
  library_.Call([&] {
    MPI_Group all = MPI_GROUP_NULL, dead = MPI_GROUP_NULL;
    MPI_Comm_group(comm_, &all);
    MPIX_Comm_failure_ack(comm_);
    int size = 0;
    const int error = MPIX_Comm_failure_get_acked(comm_, &dead);
    if (error == MPI_SUCCESS) MPI_Group_size(dead, &size);
    const int first = 0;
    return size > 0 ? MPI_Group_translate_ranks(dead, 1, &first, all, &rank) : error;
  });
  return rank;
}
#endif

Status Collectives::StatusOf(int error) const noexcept {
  if (error == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0, kind = 0;
  MPI_Error_class(error, &kind);
  MPI_Error_string(error, text, &length);
#ifdef MPIX_ERR_PROC_FAILED  // User-Level Failure Mitigation: MPI knows who has died
  if (kind == MPIX_ERR_PROC_FAILED) {
    const int32_t rank = FirstDead();
    return Status::Error(StatusCode::kPeerLost, "the process of rank %d has ended: %s", rank, text)
        .WithRank(rank);
  }
#endif
  if (kind == MPI_ERR_TRUNCATE) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "a rank sent more than this transfer has: all ranks must submit the same "
                         "transfers in the same order (%s)",
                         text);
  }
  return Status::Error(StatusCode::kPeerLost, "MPI gave up: %s", text);
}

}  // namespace engine::mpi
