#include "collectives.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "kit/reduce.h"

namespace engine::mpi {
namespace {

constexpr int kAbortTag = 1;
constexpr size_t kId = sizeof(kit::TransferId);
constexpr size_t kMostStaged = 4 << 20;  // bytes of all messages of a chunk
// Data of a rank, and of all, in an all-reduce that is an all-gather: one step and not two, where
// bytes cost less than steps. With its id a message fits into what MPI libraries send unasked.
constexpr size_t kMostGathered = 2016, kMostGatheredInAll = 64 << 10;
constexpr int kLooks = 16;  // at a request, before anything else is looked at
// A thread spins, then yields, then sleeps. Ranks that have all come to a transfer are at work; until
// then they may compute.
constexpr std::chrono::microseconds kSpinTime(50), kYieldTime(1000), kSleep(50);
constexpr std::chrono::milliseconds kAbortTime(200);

void Copy(void* to, const void* from, size_t bytes) noexcept {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

// Spinning helps only who has a core to itself.
Collectives::Collectives(Library& library, MPI_Comm comm, const RankInfo& ranks,
                         size_t message_bytes, kit::Progress& progress)
    : library_(library),
      comm_(comm),
      ranks_(ranks),
      rank_(static_cast<size_t>(ranks.rank)),
      size_(static_cast<size_t>(ranks.world_size)),
      message_bytes_(
          std::max<size_t>(std::min(message_bytes, kMostStaged / size_) & ~size_t{63}, 64)),
      has_core_(static_cast<int>(std::thread::hardware_concurrency()) >= ranks.local_world_size),
      progress_(progress),
      memory_(std::make_unique<Memory>()) {
  memory_->aborts.resize(size_, MPI_REQUEST_NULL);
  for (Chunk& chunk : memory_->chunks) {
    chunk.sent.resize(size_ * (kId + message_bytes_));
    chunk.received.resize(chunk.sent.size());
    chunk.counts.resize(size_);
    chunk.starts.resize(size_);
  }
}

// A broken communicator is not freed: another one with its number would receive what was meant for
// this one.
Collectives::~Collectives() {
  if (broken_) {
    (void)memory_.release();
  } else {
    library_.Call([&] { return MPI_Comm_free(&comm_); });
  }
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
  Shape(transfer, 0, chunks[0]);
  ENGINE_RETURN_IF_ERROR(Start(transfer, chunks[0]));
  for (size_t number = 0;; ++number) {
    Chunk &chunk = chunks[number % 2], &next = chunks[(number + 1) % 2];
    const size_t end = chunk.first + chunk.size;
    const bool is_last = end == kit::SizeBytes(transfer);
    if (!is_last) {
      Shape(transfer, end, next);
      ENGINE_RETURN_IF_ERROR(Start(transfer, next));
    }
    ENGINE_RETURN_IF_ERROR(Wait(&chunk.request, number > 0));
    ENGINE_RETURN_IF_ERROR(Finish(transfer, chunk));
    progress_.Moved(chunk.stride * size_);
    if (is_last) return {};
  }
}

// Slices are multiples of the largest element.
void Collectives::Shape(const Transfer& transfer, size_t first, Chunk& chunk) const noexcept {
  const size_t size = kit::SizeBytes(transfer);
  const bool reduces_all = transfer.kind == TransferKind::kAllReduce;
  const size_t gathers = std::min({kMostGathered, kMostGatheredInAll / size_, message_bytes_});
  chunk.way = Way::kExchange;
  if (transfer.kind == TransferKind::kBroadcast) chunk.way = Way::kBroadcast;
  if (transfer.kind == TransferKind::kAllGather || size <= (reduces_all ? gathers : 0)) {
    chunk.way = Way::kGather;
  }
  const bool is_whole = reduces_all || transfer.kind == TransferKind::kBroadcast;
  chunk.first = first;
  chunk.size = std::min(size - first, message_bytes_ * (is_whole ? size_ : 1));
  chunk.cut = reduces_all && chunk.way == Way::kExchange;
  chunk.slice = chunk.cut ? ((chunk.size + size_ - 1) / size_ + 3) & ~size_t{3} : chunk.size;
  chunk.part = chunk.cut ? chunk.slice : size;
  chunk.stride = kId + chunk.slice;
}

size_t Collectives::Chunk::SliceOf(size_t rank) const noexcept {
  return cut ? std::min(slice, size - std::min(rank * slice, size)) : slice;
}

// What a rank would send to itself stays in its buffer.
Status Collectives::Start(const Transfer& transfer, Chunk& chunk) noexcept {
  const kit::TransferId id = kit::IdOf(transfer);
  const auto* const from = static_cast<const std::byte*>(transfer.send) + chunk.first;
  const auto write = [&](std::byte* message, size_t at, size_t size) {
    std::memcpy(message, &id, kId);
    Copy(message + kId, from + at, size);
  };
  std::byte *const sent = chunk.sent.data(), *const received = chunk.received.data();
  for (size_t rank = 0; rank < size_; ++rank) {
    chunk.starts[rank] = static_cast<int>(rank * chunk.stride);
    chunk.counts[rank] = rank == rank_ ? 0 : static_cast<int>(chunk.stride);
    if (chunk.way != Way::kExchange || rank == rank_) continue;
    write(sent + rank * chunk.stride, rank * chunk.part, chunk.SliceOf(rank));
  }
  if (chunk.way == Way::kGather) write(received + rank_ * chunk.stride, 0, chunk.size);
  const bool is_root = transfer.root == ranks_.rank;
  if (chunk.way == Way::kBroadcast && is_root) write(received, 0, chunk.size);
  const int bytes = static_cast<int>(chunk.stride);
  const int *const counts = chunk.counts.data(), *const starts = chunk.starts.data();
  return StatusOf(library_.Call([&] {
    if (chunk.way == Way::kGather) {
      return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, received, bytes, MPI_BYTE, comm_,
                            &chunk.request);
    }
    if (chunk.way == Way::kBroadcast) {
      return MPI_Ibcast(received, bytes, MPI_BYTE, transfer.root, comm_, &chunk.request);
    }
    return MPI_Ialltoallv(sent, counts, starts, MPI_BYTE, received, counts, starts, MPI_BYTE, comm_,
                          &chunk.request);
  }));
}

Status Collectives::Finish(const Transfer& transfer, Chunk& chunk) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckIds(transfer, chunk));
  if (chunk.size == 0 || transfer.recv == nullptr) return {};
  std::byte *const sent = chunk.sent.data(), *const received = chunk.received.data();
  auto* const to = static_cast<std::byte*>(transfer.recv) + chunk.first;
  const auto* const from = static_cast<const std::byte*>(transfer.send) + chunk.first;
  if (chunk.way == Way::kBroadcast) {
    if (transfer.root != ranks_.rank || from != to) Copy(to, received + kId, chunk.size);
  } else if (transfer.kind == TransferKind::kAllGather) {
    Unpack(chunk, received, to);
  } else if (!chunk.cut) {
    const size_t own = chunk.way == Way::kGather ? 0 : rank_ * chunk.part;
    Reduce(transfer, chunk, from + own, to, chunk.size);
  } else {
    // The slices sent have arrived, since the all-to-all is done: their place is free for sums.
    std::byte* const sum = sent + rank_ * chunk.stride + kId;
    Reduce(transfer, chunk, from + rank_ * chunk.part, sum, chunk.SliceOf(rank_));
    const int bytes = static_cast<int>(chunk.stride);
    ENGINE_RETURN_IF_ERROR(StatusOf(library_.Call([&] {
      return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, sent, bytes, MPI_BYTE, comm_,
                            &chunk.request);
    })));
    ENGINE_RETURN_IF_ERROR(Wait(&chunk.request, true));
    Unpack(chunk, sent, to);
  }
  return {};
}

// Of a broadcast there is the root's id alone.
Status Collectives::CheckIds(const Transfer& transfer, const Chunk& chunk) const noexcept {
  const bool one = chunk.way == Way::kBroadcast;
  const kit::TransferId own = kit::IdOf(transfer);
  for (int32_t rank = 0; rank < ranks_.world_size; ++rank) {
    if (rank == ranks_.rank || (one && rank != transfer.root)) continue;
    kit::TransferId theirs;
    const size_t at = one ? 0 : static_cast<size_t>(rank) * chunk.stride;
    std::memcpy(&theirs, chunk.received.data() + at, kId);
    if (!Agree(own, theirs)) return Disagreement(own, theirs, rank);
  }
  return {};
}

void Collectives::Reduce(const Transfer& transfer, const Chunk& chunk, const std::byte* own,
                         std::byte* out, size_t size) const noexcept {
  const kit::ReduceKernels& kernels = kit::kReduceKernels.For(transfer.dtype, transfer.reduction);
  const auto slice = [&](size_t rank) {
    return rank == rank_ ? own : chunk.received.data() + rank * chunk.stride + kId;
  };
  const size_t element = SizeOf(transfer.dtype);
  if (size_ == 2) return kernels.combine(out, slice(0), slice(1), size / element);
  constexpr size_t kAtOnce = 4096;
  alignas(64) std::byte sums[kAtOnce * kit::kAccumulatorGrowth];
  for (size_t at = 0; at < size; at += kAtOnce) {
    const size_t count = std::min(kAtOnce, size - at) / element;
    kernels.load(sums, slice(0) + at, count);
    for (size_t rank = 1; rank < size_; ++rank) kernels.fold(sums, slice(rank) + at, count);
    kernels.store(out + at, sums, count);
  }
}

void Collectives::Unpack(const Chunk& chunk, const std::byte* messages,
                         std::byte* to) const noexcept {
  for (size_t rank = 0; rank < size_; ++rank) {
    Copy(to + rank * chunk.part, messages + rank * chunk.stride + kId, chunk.SliceOf(rank));
  }
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
    // Only where nothing moves: what a rank has sent before it gave up counts.
    int leaves = 0;
    MPI_Status from{};
    ENGINE_RETURN_IF_ERROR(StatusOf(library_.Call(
        [&] { return MPI_Iprobe(MPI_ANY_SOURCE, kAbortTag, comm_, &leaves, &from); })));
    if (leaves != 0) {
      return Status::Error(StatusCode::kPeerLost, "rank %d gave up", from.MPI_SOURCE)
          .WithRank(from.MPI_SOURCE);
    }
    std::this_thread::sleep_for(kSleep);
  }
}

// Over networks a first message waits for a connection, which MPI makes while requests are looked
// at.
void Collectives::Stop(bool tells) noexcept {
  stopped_ = true;
  if (!tells) return;
  broken_ = true;
  library_.Call([&] {
    for (int peer = 0; peer < ranks_.world_size; ++peer) {
      if (peer == ranks_.rank) continue;
      MPI_Isend(nullptr, 0, MPI_BYTE, peer, kAbortTag, comm_,
                &memory_->aborts[static_cast<size_t>(peer)]);
    }
    return MPI_SUCCESS;
  });
  const kit::Clock::time_point end = kit::Clock::now() + kAbortTime;
  for (int done = 0; done == 0 && kit::Clock::now() < end;) {
    library_.Call([&] {
      return MPI_Testall(ranks_.world_size, memory_->aborts.data(), &done, MPI_STATUSES_IGNORE);
    });
  }
}

Status Collectives::StatusOf(int error) const noexcept {
  if (error == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0, kind = 0;
  MPI_Error_class(error, &kind);
  MPI_Error_string(error, text, &length);
  if (kind == MPI_ERR_TRUNCATE) {  // before its id could be read
    return Status::Error(StatusCode::kInvalidArgument,
                         "a rank sent more than this transfer has: all ranks must submit the same "
                         "transfers in the same order (%s)",
                         text);
  }
  return Status::Error(StatusCode::kPeerLost, "MPI gave up: %s", text);
}

}  // namespace engine::mpi
