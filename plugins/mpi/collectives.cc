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
constexpr size_t kMostStaged = 4 << 20;   // bytes of all messages of a chunk
constexpr size_t kMostOpening = 2 << 10;  // bytes of a rank: what MPI libraries send at once
constexpr size_t kMostOpenings = 64 << 10;
constexpr int kLooks = 16;  // at a request, before anything else is looked at
// A chunk is under way for less; in a step ranks are apart for more.
constexpr std::chrono::microseconds kYieldTime(1000), kSleep(50);
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
      spin_(static_cast<int>(std::thread::hardware_concurrency()) < ranks.local_world_size ? 0
                                                                                           : 20),
      progress_(progress),
      memory_(std::make_unique<Memory>()) {
  memory_->farewells.resize(size_, MPI_REQUEST_NULL);
  memory_->openings.resize(std::max(kMostOpenings, size_ * sizeof(kit::TransferId)));
  for (Chunk& chunk : memory_->chunks) {
    chunk.sent.resize(size_ * message_bytes_);
    chunk.received.resize(size_ * message_bytes_);
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
  const kit::TransferId own = kit::IdOf(transfer);
  const size_t carried = CarriedBytes(transfer), block = sizeof(own) + carried;
  std::byte* const openings = memory_->openings.data();
  std::byte* const opening = openings + static_cast<size_t>(ranks_.rank) * block;
  std::memcpy(opening, &own, sizeof(own));
  Copy(opening + sizeof(own), transfer.send, carried);
  MPI_Request opened = MPI_REQUEST_NULL;
  ENGINE_RETURN_IF_ERROR(StatusOf(library_.Call([&] {
    return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, openings, static_cast<int>(block), MPI_BYTE,
                          comm_, &opened);
  })));
  const bool has_chunks = transfer.kind != TransferKind::kBarrier && carried == 0;
  const int64_t per_chunk = ElementsPerChunk(transfer);
  const int64_t chunks = has_chunks ? (transfer.count + per_chunk - 1) / per_chunk : 0;
  if (chunks > 0) ENGINE_RETURN_IF_ERROR(StartChunk(transfer, 0));
  ENGINE_RETURN_IF_ERROR(Wait(&opened));
  ENGINE_RETURN_IF_ERROR(CheckIds(own, block));
  progress_.Moved(block);
  if (carried > 0 && transfer.kind == TransferKind::kAllReduce) {
    Reduce(transfer, openings + sizeof(own), block, transfer.recv,
           static_cast<size_t>(transfer.count));
  } else if (carried > 0) {
    for (size_t rank = 0; rank < size_; ++rank) {
      Copy(static_cast<std::byte*>(transfer.recv) + rank * carried,
           openings + rank * block + sizeof(own), carried);
    }
  }
  for (int64_t number = 0; number < chunks; ++number) {
    if (number + 1 < chunks) ENGINE_RETURN_IF_ERROR(StartChunk(transfer, number + 1));
    ENGINE_RETURN_IF_ERROR(FinishChunk(transfer, number));
    progress_.Moved(memory_->chunks[number % 2].message * size_);
  }
  return {};
}

// 0: the data follows, or there is none.
size_t Collectives::CarriedBytes(const Transfer& transfer) const noexcept {
  const bool all_reduce = transfer.kind == TransferKind::kAllReduce && !mpi_reduces_;
  if (!all_reduce && transfer.kind != TransferKind::kAllGather) return 0;
  const size_t bytes = kit::SizeBytes(transfer), block = bytes + sizeof(kit::TransferId);
  return block <= std::min(kMostOpening, kMostOpenings / size_) ? bytes : 0;
}

Status Collectives::CheckIds(const kit::TransferId& own, size_t block) const noexcept {
  for (size_t rank = 0; rank < size_; ++rank) {
    kit::TransferId theirs;
    std::memcpy(&theirs, memory_->openings.data() + rank * block, sizeof(theirs));
    if (!Agree(own, theirs)) return Disagreement(own, theirs, static_cast<int32_t>(rank));
  }
  return {};
}

int64_t Collectives::ElementsPerChunk(const Transfer& transfer) const noexcept {
  const bool of_each =
      transfer.kind == TransferKind::kReduceScatter || transfer.kind == TransferKind::kAllGather;
  return static_cast<int64_t>(message_bytes_ / SizeOf(transfer.dtype) * (of_each ? 1 : size_));
}

Status Collectives::StartChunk(const Transfer& transfer, int64_t number) noexcept {
  Chunk& chunk = memory_->chunks[number % 2];
  const int64_t per_chunk = ElementsPerChunk(transfer);
  chunk.first = number * per_chunk;
  chunk.count = std::min(per_chunk, transfer.count - chunk.first);
  const bool cut =
      transfer.kind == TransferKind::kAllReduce || transfer.kind == TransferKind::kBroadcast;
  const size_t element = SizeOf(transfer.dtype), elements = static_cast<size_t>(chunk.count);
  chunk.message = (cut ? (elements + size_ - 1) / size_ : elements) * element;
  const auto* const from =
      static_cast<const std::byte*>(transfer.send) + static_cast<size_t>(chunk.first) * element;
  std::byte *const sent = chunk.sent.data(), *const received = chunk.received.data();
  const auto rank = static_cast<size_t>(ranks_.rank);
  if (transfer.kind == TransferKind::kAllReduce) {
    Copy(sent, from, elements * element);
  } else if (transfer.kind == TransferKind::kReduceScatter) {
    const size_t part = kit::SizeBytes(transfer);
    for (size_t to = 0; to < size_; ++to) {
      Copy(sent + to * chunk.message, from + to * part, chunk.message);
    }
  } else if (transfer.kind == TransferKind::kAllGather) {
    Copy(received + rank * chunk.message, from, chunk.message);
  } else if (transfer.root == ranks_.rank) {
    Copy(received, from, elements * element);
  }
  const auto count = static_cast<int>(elements), bytes = static_cast<int>(chunk.message);
  const MPI_Datatype type = TypeOf(transfer.dtype);
  return StatusOf(library_.Call([&] {
    switch (transfer.kind) {
      case TransferKind::kAllGather:
        return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, received, bytes, MPI_BYTE, comm_,
                              &chunk.request);
      case TransferKind::kBroadcast:
        return MPI_Ibcast(received, count, type, transfer.root, comm_, &chunk.request);
      case TransferKind::kAllReduce:
        if (!mpi_reduces_) break;
        return MPI_Iallreduce(sent, received, count, type, OperationOf(transfer), comm_,
                              &chunk.request);
      default:
        if (!mpi_reduces_) break;
        return MPI_Ireduce_scatter_block(sent, received, count, type, OperationOf(transfer), comm_,
                                         &chunk.request);
    }
    return MPI_Ialltoall(sent, bytes, MPI_BYTE, received, bytes, MPI_BYTE, comm_, &chunk.request);
  }));
}

Status Collectives::FinishChunk(const Transfer& transfer, int64_t number) noexcept {
  Chunk& chunk = memory_->chunks[number % 2];
  ENGINE_RETURN_IF_ERROR(Wait(&chunk.request));
  const size_t element = SizeOf(transfer.dtype);
  const size_t bytes = static_cast<size_t>(chunk.count) * element;
  std::byte *const sent = chunk.sent.data(), *const received = chunk.received.data();
  auto* const to = static_cast<std::byte*>(transfer.recv) +
                   (transfer.recv ? static_cast<size_t>(chunk.first) * element : 0);
  if (transfer.kind == TransferKind::kAllGather) {
    const size_t part = kit::SizeBytes(transfer);
    for (size_t rank = 0; rank < size_; ++rank) {
      Copy(to + rank * part, received + rank * chunk.message, bytes);
    }
  } else if (transfer.kind == TransferKind::kBroadcast) {
    const bool has_it = transfer.root == ranks_.rank && transfer.recv == transfer.send;
    if (transfer.recv != nullptr && !has_it) Copy(to, received, bytes);
  } else if (mpi_reduces_) {
    Copy(to, received, bytes);
  } else if (transfer.kind == TransferKind::kReduceScatter) {
    Reduce(transfer, received, chunk.message, to, static_cast<size_t>(chunk.count));
  } else {
    Reduce(transfer, received, chunk.message,
           sent + static_cast<size_t>(ranks_.rank) * chunk.message, chunk.message / element);
    const auto message = static_cast<int>(chunk.message);
    ENGINE_RETURN_IF_ERROR(StatusOf(library_.Call([&] {
      return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, sent, message, MPI_BYTE, comm_,
                            &chunk.request);
    })));
    ENGINE_RETURN_IF_ERROR(Wait(&chunk.request));
    Copy(to, sent, bytes);
  }
  return {};
}

void Collectives::Reduce(const Transfer& transfer, const std::byte* from, size_t stride, void* out,
                         size_t count) const noexcept {
  const kit::ReduceKernels& kernels = kit::kReduceKernels.For(transfer.dtype, transfer.reduction);
  if (size_ == 2) return kernels.combine(out, from, from + stride, count);
  constexpr size_t kAtOnce = 1024;
  alignas(64) std::byte sums[kAtOnce * kit::kMaxAccumulatorBytes];
  const size_t element = SizeOf(transfer.dtype);
  for (size_t begin = 0; begin < count; begin += kAtOnce) {
    const size_t elements = std::min(kAtOnce, count - begin);
    kernels.load(sums, from + begin * element, elements);
    for (size_t rank = 1; rank < size_; ++rank) {
      kernels.fold(sums, from + rank * stride + begin * element, elements);
    }
    kernels.store(static_cast<std::byte*>(out) + begin * element, sums, elements);
  }
}

MPI_Op Collectives::OperationOf(const Transfer& transfer) const noexcept {
  constexpr MPI_Op kOfMpi[] = {MPI_SUM, MPI_MAX, MPI_MIN};
  const auto reduction = static_cast<size_t>(transfer.reduction);
  if (transfer.dtype == DType::kBFloat16) return operations_[0][reduction];
  return transfer.dtype == DType::kFloat16 ? operations_[1][reduction] : kOfMpi[reduction];
}

// MPI moves what is looked at, so a look is never far away: the thread spins, then yields, and
// sleeps where ranks are apart. Deadlines are the lane's, which stops it.
Status Collectives::Wait(MPI_Request* request) noexcept {
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
    if (waited < spin_) continue;
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

Status Collectives::StatusOf(int error) const noexcept {
  if (error == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0, kind = 0;
  MPI_Error_class(error, &kind);
  MPI_Error_string(error, text, &length);
  if (kind == MPI_ERR_TRUNCATE) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "a rank sent more than this transfer has: all ranks must submit the same "
                         "transfers in the same order (%s)",
                         text);
  }
  return Status::Error(StatusCode::kPeerLost, "MPI gave up: %s", text);
}

}  // namespace engine::mpi
