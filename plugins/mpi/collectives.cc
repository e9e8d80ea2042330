#include "collectives.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <thread>

#include "kit/reduce.h"

namespace engine::mpi {
namespace {

constexpr int kOpeningTag = 0, kAbortTag = 1;
constexpr size_t kId = sizeof(kit::TransferId);
constexpr size_t kMostStaged = 4 << 20;  // bytes of all slices of a chunk
// An opening with data saves two steps, where bytes cost less than those. Few ranks send it to each
// other in pieces that MPI libraries send unasked; what more of them have is left to a collective.
constexpr size_t kFewRanks = 8, kPiece = 4032;
constexpr size_t kMostToFew = 16 << 10;  // bytes that a rank sends, ids apart
constexpr size_t kMostInOpening = 2016, kMostInAllOpening = 64 << 10;
constexpr int kLooks = 32;  // at requests, before anything else is looked at, clocks too
// A thread spins, then yields, then sleeps. Ranks that have all come to a transfer are at work; until
// then they may compute.
constexpr std::chrono::microseconds kSpinTime(50), kYieldTime(1000), kSleep(50);
constexpr std::chrono::milliseconds kAbortTime(200);
constexpr int64_t kSyncMs = 10000;  // for copies on a device

// Whether the cores on which the ranks of this host may run are as many as those ranks, however a
// launcher has bound them. Collective.
bool HasCore(Library& library, MPI_Comm comm) noexcept {
  cpu_set_t own, all;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof(own), &own);
  int ranks = 0;
  const int error = library.Call([&] {
    MPI_Comm host = MPI_COMM_NULL;
    const int failed = MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    if (failed != MPI_SUCCESS) return failed;
    MPI_Comm_size(host, &ranks);
    MPI_Allreduce(&own, &all, sizeof(own), MPI_BYTE, MPI_BOR, host);
    return MPI_Comm_free(&host);
  });
  return error == MPI_SUCCESS && CPU_COUNT(&all) >= ranks;
}

bool Reduces(const Transfer& transfer) noexcept {
  return transfer.kind == TransferKind::kAllReduce || transfer.kind == TransferKind::kReduceScatter;
}

}  // namespace

// Spinning helps only who has a core to itself. Slices are multiples of a cache line.
Collectives::Collectives(Library& library, MPI_Comm comm, const RankInfo& ranks,
                         size_t message_bytes, kit::Progress& progress, const OnDevice* place)
    : library_(library),
      comm_(comm),
      ranks_(ranks),
      rank_(static_cast<size_t>(ranks.rank)),
      size_(static_cast<size_t>(ranks.world_size)),
      message_bytes_(
          std::max<size_t>(std::min(message_bytes, kMostStaged / size_) & ~size_t{63}, 64)),
      is_few_(size_ <= kFewRanks),
      opening_bytes_(place != nullptr ? 0
                     : is_few_        ? kMostToFew / (size_ - 1)
                                      : std::min(kMostInOpening, kMostInAllOpening / size_)),
      has_core_(HasCore(library, comm)),
      progress_(progress),
      place_(place),
      memory_(std::make_unique<Memory>(broken_)) {
  memory_->aborts.resize(size_, MPI_REQUEST_NULL);
  const size_t pieces = (kId + opening_bytes_ + kPiece - 1) / kPiece;
  memory_->opening.resize(size_ * pieces * kPiece);
  memory_->opened.resize(is_few_ ? 2 * (size_ - 1) * pieces : 1, MPI_REQUEST_NULL);
  for (Chunk& chunk : memory_->chunks) {
    const size_t bytes = size_ * message_bytes_;
    chunk.host.resize(place == nullptr ? 2 * bytes : bytes);
    if (place == nullptr) {
      chunk.copies = chunk.host.data();
    } else if (copied_.ok()) {
      void* memory = nullptr;
      copied_ = place->device->Allocate(2 * bytes, &memory);
      chunk.copies = static_cast<std::byte*>(memory);
    }
    chunk.received = chunk.copies == nullptr ? nullptr : chunk.copies + bytes;
    for (std::vector<int>* of_ranks :
         {&chunk.counts, &chunk.starts, &chunk.counts_received, &chunk.starts_received}) {
      of_ranks->resize(size_);
    }
  }
}

// A broken communicator is not freed: another one with its number would receive what was meant for
// this one.
Collectives::~Collectives() {
  if (broken_) {
    (void)memory_.release();
    return;
  }
  library_.Call([&] { return MPI_Comm_free(&comm_); });
  if (place_ == nullptr) return;
  (void)place_->stream->Synchronize(kSyncMs);
  for (const Chunk& chunk : memory_->chunks) {
    if (chunk.copies != nullptr) place_->device->Free(chunk.copies);
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
  const size_t size = kit::SizeBytes(transfer), of_all = size * size_;
  const size_t sent = transfer.kind == TransferKind::kReduceScatter ? of_all : size;
  ENGINE_RETURN_IF_ERROR(Open(transfer, sent));
  if (sent <= opening_bytes_) {
    ENGINE_RETURN_IF_ERROR(AwaitOpening(transfer));
    TakeFromOpening(transfer);
    return {};
  }
  // The places of slices in whole buffers have to fit into an int.
  const size_t received = transfer.kind == TransferKind::kAllGather ? of_all : size;
  reads_ = memory_->arenas.Holds(transfer.send, sent) && (sent == size || sent <= INT_MAX);
  writes_ =
      memory_->arenas.Holds(transfer.recv, received) && (received == size || received <= INT_MAX);

  auto& chunks = memory_->chunks;
  ENGINE_RETURN_IF_ERROR(Start(transfer, 0, chunks[0]));
  ENGINE_RETURN_IF_ERROR(AwaitOpening(transfer));
  for (size_t number = 0;; ++number) {
    Chunk &chunk = chunks[number % 2], &next = chunks[(number + 1) % 2];
    const size_t end = chunk.first + chunk.size;
    if (end < size) ENGINE_RETURN_IF_ERROR(Start(transfer, end, next));
    ENGINE_RETURN_IF_ERROR(Wait({&chunk.request, 1}, true));
    ENGINE_RETURN_IF_ERROR(Finish(transfer, chunk));
    progress_.Moved(chunk.slice * size_);
    if (end == size) return Sync();
  }
}

// ---- The opening.

Status Collectives::Open(const Transfer& transfer, size_t sent) noexcept {
  const size_t data = sent <= opening_bytes_ ? sent : 0;
  stride_ = is_few_ ? memory_->opening.size() / size_ : kId + data;
  std::byte* const messages = memory_->opening.data();
  const kit::TransferId id = kit::IdOf(transfer);
  std::memcpy(messages + rank_ * stride_, &id, kId);
  if (transfer.send != nullptr) Copy(messages + rank_ * stride_ + kId, transfer.send, data);
  return StatusOf(library_.Call([&] {
    if (is_few_) return SendToEach(messages, kId + data);
    opened_ = 1;
    return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, messages, static_cast<int>(stride_), MPI_BYTE,
                          comm_, memory_->opened.data());
  }));
}

// The first pieces come first, and have room for those of any transfer: ids tell which differs.
int Collectives::SendToEach(std::byte* messages, size_t bytes) noexcept {
  int error = MPI_SUCCESS;
  opened_ = 0;
  for (const bool sends : {false, true}) {
    for (size_t at = 0; at < bytes; at += kPiece) {
      const auto size = static_cast<int>(sends ? std::min(kPiece, bytes - at) : kPiece);
      for (size_t peer = 0; peer < size_ && error == MPI_SUCCESS; ++peer) {
        if (peer == rank_) continue;
        std::byte* const piece = messages + (sends ? rank_ : peer) * stride_ + at;
        MPI_Request* const request = &memory_->opened[opened_++];
        const auto rank = static_cast<int>(peer);
        error = sends ? MPI_Isend(piece, size, MPI_BYTE, rank, kOpeningTag, comm_, request)
                      : MPI_Irecv(piece, size, MPI_BYTE, rank, kOpeningTag, comm_, request);
      }
    }
  }
  return error;
}

Status Collectives::AwaitOpening(const Transfer& transfer) noexcept {
  const std::span<MPI_Request> all(memory_->opened.data(), opened_);
  const size_t ids = is_few_ ? size_ - 1 : 1;
  ENGINE_RETURN_IF_ERROR(Wait(all.first(ids), false));
  const kit::TransferId own = kit::IdOf(transfer);
  for (int32_t rank = 0; rank < ranks_.world_size; ++rank) {
    kit::TransferId theirs;
    std::memcpy(&theirs, memory_->opening.data() + static_cast<size_t>(rank) * stride_, kId);
    if (!Agree(own, theirs)) return Disagreement(own, theirs, rank);
  }
  ENGINE_RETURN_IF_ERROR(Wait(all.subspan(ids), true));
  progress_.Moved(stride_ * size_);
  return {};
}

void Collectives::TakeFromOpening(const Transfer& transfer) noexcept {
  const size_t size = kit::SizeBytes(transfer);
  auto* const to = static_cast<std::byte*>(transfer.recv);
  if (size == 0 || to == nullptr) return;
  const std::byte* const data = memory_->opening.data() + kId;
  if (Reduces(transfer)) {
    const bool scatters = transfer.kind == TransferKind::kReduceScatter;
    const std::byte* const slices = data + (scatters ? rank_ * size : 0);
    Reduce(transfer, slices + rank_ * stride_, slices, stride_, to, size);
  } else if (transfer.kind == TransferKind::kBroadcast) {
    Copy(to, data + static_cast<size_t>(transfer.root) * stride_, size);
  } else {
    for (size_t rank = 0; rank < size_; ++rank) Copy(to + rank * size, data + rank * stride_, size);
  }
}

// ---- Chunks.

size_t Collectives::Chunk::SliceOf(size_t rank) const noexcept {
  return is_cut ? std::min(slice, size - std::min(rank * slice, size)) : slice;
}

Status Collectives::Start(const Transfer& transfer, size_t first, Chunk& chunk) noexcept {
  const size_t size = kit::SizeBytes(transfer);
  const bool is_broadcast = transfer.kind == TransferKind::kBroadcast;
  chunk.is_cut = transfer.kind == TransferKind::kAllReduce;
  chunk.first = first;
  chunk.size = std::min(size - first, message_bytes_ * (chunk.is_cut || is_broadcast ? size_ : 1));
  chunk.slice = chunk.is_cut ? ((chunk.size + size_ - 1) / size_ + 63) & ~size_t{63} : chunk.size;
  if (Reduces(transfer)) return Exchange(transfer, chunk);

  const auto* const from = static_cast<const std::byte*>(transfer.send) + first;
  auto* const to = static_cast<std::byte*>(transfer.recv) + first;
  std::byte* slices = writes_ ? to : chunk.copies;
  if (!is_broadcast) {
    const size_t step = writes_ ? size : chunk.slice;
    Copy(slices + rank_ * step, from, chunk.size);
    return Gather(chunk, slices, step);
  }
  if (transfer.root == ranks_.rank) {
    slices = reads_ ? const_cast<std::byte*>(from) : chunk.copies;
    Copy(slices, from, chunk.size);
  }
  ENGINE_RETURN_IF_ERROR(Sync());
  return StatusOf(library_.Call([&] {
    return MPI_Ibcast(slices, static_cast<int>(chunk.size), MPI_BYTE, transfer.root, comm_,
                      &chunk.request);
  }));
}

// What a rank would send to itself stays in its buffer.
Status Collectives::Exchange(const Transfer& transfer, Chunk& chunk) noexcept {
  const size_t step = chunk.is_cut ? chunk.slice : kit::SizeBytes(transfer);
  const auto* slices = static_cast<const std::byte*>(transfer.send) + chunk.first;
  std::byte* const copies = chunk.copies;
  for (size_t rank = 0; rank < size_; ++rank) {
    const bool is_own = rank == rank_;
    const size_t slice = is_own ? 0 : chunk.SliceOf(rank);
    if (!reads_) Copy(copies + rank * chunk.slice, slices + rank * step, slice);
    chunk.counts[rank] = static_cast<int>(slice);
    chunk.starts[rank] = static_cast<int>(rank * (reads_ ? step : chunk.slice));
    chunk.counts_received[rank] = is_own ? 0 : static_cast<int>(chunk.SliceOf(rank_));
    chunk.starts_received[rank] = static_cast<int>(rank * chunk.slice);
  }
  ENGINE_RETURN_IF_ERROR(Sync());
  return StatusOf(library_.Call([&] {
    return MPI_Ialltoallv(reads_ ? slices : copies, chunk.counts.data(), chunk.starts.data(),
                          MPI_BYTE, chunk.received, chunk.counts_received.data(),
                          chunk.starts_received.data(), MPI_BYTE, comm_, &chunk.request);
  }));
}

// Each rank has put its slice there.
Status Collectives::Gather(Chunk& chunk, std::byte* slices, size_t step) noexcept {
  for (size_t rank = 0; rank < size_; ++rank) {
    chunk.counts[rank] = static_cast<int>(chunk.SliceOf(rank));
    chunk.starts[rank] = static_cast<int>(rank * step);
  }
  ENGINE_RETURN_IF_ERROR(Sync());
  return StatusOf(library_.Call([&] {
    return MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, slices, chunk.counts.data(),
                           chunk.starts.data(), MPI_BYTE, comm_, &chunk.request);
  }));
}

// The first collective is done. The slices that were sent have arrived then: their place in the
// copies is free for sums.
Status Collectives::Finish(const Transfer& transfer, Chunk& chunk) noexcept {
  const size_t size = kit::SizeBytes(transfer);
  const auto* const from = static_cast<const std::byte*>(transfer.send) + chunk.first;
  auto* const to = static_cast<std::byte*>(transfer.recv) + chunk.first;
  std::byte* const copies = chunk.copies;
  switch (transfer.kind) {
    case TransferKind::kReduceScatter:
      return ReduceChunk(transfer, chunk, from + rank_ * size, to, chunk.size);
    case TransferKind::kAllReduce: {
      std::byte* const sums = writes_ ? to : copies;
      const size_t own = rank_ * chunk.slice;
      ENGINE_RETURN_IF_ERROR(
          ReduceChunk(transfer, chunk, from + own, sums + own, chunk.SliceOf(rank_)));
      ENGINE_RETURN_IF_ERROR(Gather(chunk, sums, chunk.slice));
      ENGINE_RETURN_IF_ERROR(Wait({&chunk.request, 1}, true));
      Copy(to, sums, chunk.size);
      return {};
    }
    case TransferKind::kBroadcast:
      if (transfer.root == ranks_.rank) {
        if (transfer.recv != nullptr) Copy(to, from, chunk.size);
      } else if (!writes_) {
        Copy(to, copies, chunk.size);
      }
      return {};
    default:
      for (size_t rank = 0; !writes_ && rank < size_; ++rank) {
        Copy(to + rank * size, copies + rank * chunk.slice, chunk.size);
      }
      return {};
  }
}

// On the host also for memory of a device: in rank order and in 16 bits, as MPI does not. Nobody
// sends a rank its own slice, so its place is free.
Status Collectives::ReduceChunk(const Transfer& transfer, Chunk& chunk, const std::byte* own,
                                std::byte* out, size_t size) noexcept {
  if (place_ == nullptr) {
    Reduce(transfer, own, chunk.received, chunk.slice, out, size);
    return {};
  }
  std::byte *const host = chunk.host.data(), *const sums = host + rank_ * chunk.slice;
  for (size_t rank = 0; rank < size_; ++rank) {
    const std::byte* const slice = chunk.received + rank * chunk.slice;
    Copy(host + rank * chunk.slice, rank == rank_ ? own : slice, size);
  }
  ENGINE_RETURN_IF_ERROR(Sync());
  Reduce(transfer, sums, host, chunk.slice, sums, size);
  Copy(out, sums, size);
  return {};
}

void Collectives::Copy(void* to, const void* from, size_t bytes) noexcept {
  if (bytes == 0 || to == from) return;
  if (place_ == nullptr) {
    std::memcpy(to, from, bytes);
  } else if (copied_.ok()) {
    copied_ = place_->device->Copy(to, from, bytes, place_->stream.get());
  }
}

// MPI and the host may use what was copied.
Status Collectives::Sync() noexcept {
  return place_ == nullptr || !copied_.ok() ? copied_ : place_->stream->Synchronize(kSyncMs);
}

void Collectives::Reduce(const Transfer& transfer, const std::byte* own, const std::byte* theirs,
                         size_t step, std::byte* out, size_t size) const noexcept {
  const kit::ReduceKernels& kernels = kit::kReduceKernels.For(transfer.dtype, transfer.reduction);
  const auto slice = [&](size_t rank) { return rank == rank_ ? own : theirs + rank * step; };
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

// MPI moves what is looked at. Deadlines are the lane's, which stops it.
Status Collectives::Wait(std::span<MPI_Request> requests, bool all_came) noexcept {
  kit::Clock::time_point begun;
  for (bool first = true;; first = false) {
    int done = 0;
    const int error = library_.Call([&] {
      int failed = MPI_SUCCESS;
      for (int look = 0; look < kLooks && done == 0 && failed == MPI_SUCCESS; ++look) {
        failed = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                             MPI_STATUSES_IGNORE);
      }
      return failed;
    });
    ENGINE_RETURN_IF_ERROR(StatusOf(error));
    if (done != 0) return {};
    if (stopped_) return Status::Error(StatusCode::kAborted, "the communicator was stopped");
    if (first) begun = kit::Clock::now();
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
