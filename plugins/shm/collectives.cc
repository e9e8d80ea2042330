// A transfer is its opening round and, unless the bytes travelled with that, more rounds. Which way
// it goes follows from the openings alone: all ranks have seen all of them, they agree
// (CheckOpenings), and `own` of each says who offers its buffers. So all ranks choose the same way,
// and with it the same number of rounds, without a word more.
#include "collectives.h"

#include <algorithm>
#include <cstring>

namespace engine::shm {
namespace {

// Contributions up to this travel with the opening, unless they can be used in place.
constexpr int64_t kFewBytes = 128 << 10;
// Below this a second round to wait for costs more than copies.
constexpr int64_t kDirectBytes = 2 << 10;
constexpr int64_t kMinPieceBytes = 16 << 10;
// A transfer of fewer pieces waits for its first one in vain.
constexpr int64_t kPieces = 4;
// So that a block of every source and the accumulator stay in the first-level cache.
constexpr size_t kBlockElements = 2048;
// Slices of ranks share no cache line.
constexpr int64_t kSliceElements = 64;

int64_t Bytes(const Transfer& transfer, int64_t elements) noexcept {
  return elements * static_cast<int64_t>(SizeOf(transfer.dtype));
}

const uint8_t* Send(const Transfer& transfer, int64_t element) noexcept {
  return static_cast<const uint8_t*>(transfer.send) + Bytes(transfer, element);
}

uint8_t* Recv(const Transfer& transfer, int64_t element) noexcept {
  return static_cast<uint8_t*>(transfer.recv) + Bytes(transfer, element);
}

void Copy(void* to, const void* from, int64_t size_bytes) noexcept {
  if (to != from && size_bytes > 0) std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

// Parts of a transfer's `count` elements that a rank contributes.
int64_t Parts(const Transfer& transfer, int world_size) noexcept {
  switch (transfer.kind) {
    case TransferKind::kBarrier:
      return 0;
    case TransferKind::kReduceScatter:
      return world_size;
    default:
      return 1;
  }
}

}  // namespace

Collectives::Collectives(Rounds& rounds, const Arenas& arenas)
    : rounds_(rounds),
      arenas_(arenas),
      table_(KernelsOfThisProcessor()),
      rank_(rounds.rank()),
      world_size_(rounds.world_size()),
      sources_(static_cast<size_t>(world_size_)),
      targets_(static_cast<size_t>(world_size_)),
      accumulator_(new uint8_t[kBlockElements * kit::kMaxAccumulatorBytes]) {}

// ---- The opening.

int64_t Collectives::Contribution(const Transfer& transfer) const noexcept {
  return Bytes(transfer, transfer.count) * Parts(transfer, world_size_);
}

bool Collectives::IsFew(int64_t contribution) const noexcept {
  return contribution <= std::min(kFewBytes, static_cast<int64_t>(rounds_.chunk_bytes()));
}

bool Collectives::TryOpen(const Transfer& transfer) noexcept {
  if (!rounds_.Writable()) return false;
  Open(transfer);
  return true;
}

void Collectives::Open(const Transfer& transfer) noexcept {
  opened_round_ = rounds_.next();
  Opening& opening = rounds_.opening(opened_round_);
  opening.id = kit::IdOf(transfer);
  const int64_t contribution = Contribution(transfer);
  if (contribution >= kDirectBytes) OfferPlaces(transfer, &opening);
  if (contribution > 0 && opening.id.own == 0 && IsFew(contribution)) {
    const bool inlined = contribution <= static_cast<int64_t>(kInlineBytes);
    Stage(transfer, {0, transfer.count}, inlined ? opening.inlined : rounds_.stage(opened_round_));
  }
  rounds_.Publish();
}

void Collectives::OfferPlaces(const Transfer& transfer, Opening* opening) const noexcept {
  const bool reads = transfer.kind != TransferKind::kBroadcast || transfer.root == rank_;
  Arenas::Found send, recv;
  if (reads) {
    send = arenas_.Find(transfer.send, static_cast<uint64_t>(Contribution(transfer)));
    if (send.arena == 0) return;
  }
  if (transfer.kind == TransferKind::kAllReduce) {
    recv = arenas_.Find(transfer.recv, static_cast<uint64_t>(Contribution(transfer)));
    if (recv.arena == 0) return;
  }
  opening->id.own = 1;
  opening->places = {send.arena, recv.arena, send.offset, recv.offset};
}

Status Collectives::CheckOpenings() noexcept {
  const kit::TransferId& own = rounds_.opening(opened_round_).id;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    const kit::TransferId& other = rounds_.opening(peer, opened_round_).id;
    if (!kit::Agree(own, other)) return kit::Disagreement(own, other, peer);
  }
  return {};
}

int Collectives::DirectRanks() noexcept {
  int ranks = rounds_.opening(opened_round_).id.own;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer != rank_) ranks += rounds_.opening(peer, opened_round_).id.own;
  }
  return ranks;
}

bool Collectives::CanEndNow(const Transfer& transfer) noexcept {
  return IsFew(Contribution(transfer)) && rounds_.AllReached(opened_round_) && DirectRanks() == 0;
}

Status Collectives::Run(kit::PooledWork& work, bool opened, const WaitLimits& limits) noexcept {
  const Transfer& transfer = work.transfer();
  if (!opened) {
    ENGINE_RETURN_IF_ERROR(rounds_.AwaitWritable(limits));
    work.MarkStarted();
    Open(transfer);
  }
  ENGINE_RETURN_IF_ERROR(rounds_.AwaitAll(opened_round_, limits, limits.arrival_spin_ns));
  ENGINE_RETURN_IF_ERROR(CheckOpenings());
  const int64_t contribution = Contribution(transfer);
  if (contribution == 0) return {};
  const int direct = DirectRanks();
  if (direct == world_size_) return RunDirect(transfer, limits);
  if (direct == 0 && IsFew(contribution)) {  // else some rank has staged nothing yet
    TakeStaged(transfer, {0, transfer.count}, opened_round_);
    return {};
  }
  return RunPieces(transfer, limits);
}

// ---- Staged.

int64_t Collectives::PieceElements(const Transfer& transfer) const noexcept {
  const auto chunk = static_cast<int64_t>(rounds_.chunk_bytes());
  const int64_t wanted =
      std::clamp(Contribution(transfer) / kPieces, std::min(kMinPieceBytes, chunk), chunk);
  return std::max<int64_t>(wanted / Bytes(transfer, Parts(transfer, world_size_)), 1);
}

bool Collectives::IsSliced(const Transfer& transfer) const noexcept {
  return transfer.kind == TransferKind::kAllReduce && world_size_ > 2;
}

// The next round, with what `fill` writes into its stage, which all have read by then (invariant 2
// of control.h).
template <typename Fill>
Status Collectives::Publish(const WaitLimits& limits, uint32_t* round, const Fill& fill) noexcept {
  ENGINE_RETURN_IF_ERROR(rounds_.AwaitWritable(limits));
  *round = rounds_.next();
  fill(rounds_.stage(*round));
  rounds_.Publish();
  return {};
}

// One piece ahead: while peers read the stage of one piece, the next is written into another. By
// slices a piece has two rounds, one of inputs and one of results.
Status Collectives::RunPieces(const Transfer& transfer, const WaitLimits& limits) noexcept {
  const int64_t step = PieceElements(transfer);
  Piece last{0, 0};
  uint32_t last_round = 0;
  for (int64_t offset = 0; offset < transfer.count; offset += step) {
    const Piece piece{offset, std::min(step, transfer.count - offset)};
    uint32_t round = 0;
    ENGINE_RETURN_IF_ERROR(
        Publish(limits, &round, [&](uint8_t* stage) { Stage(transfer, piece, stage); }));
    if (last.count > 0) ENGINE_RETURN_IF_ERROR(AwaitAndTake(transfer, last, last_round, limits));
    last = piece;
    last_round = round;
    if (!IsSliced(transfer)) continue;
    ENGINE_RETURN_IF_ERROR(rounds_.AwaitAll(round, limits, limits.round_spin_ns));
    ENGINE_RETURN_IF_ERROR(Publish(
        limits, &last_round, [&](uint8_t* stage) { ReduceSlice(transfer, piece, round, stage); }));
  }
  return AwaitAndTake(transfer, last, last_round, limits);
}

Status Collectives::AwaitAndTake(const Transfer& transfer, Piece piece, uint32_t round,
                                 const WaitLimits& limits) noexcept {
  ENGINE_RETURN_IF_ERROR(rounds_.AwaitAll(round, limits, limits.round_spin_ns));
  IsSliced(transfer) ? TakeSlices(transfer, piece, round) : TakeStaged(transfer, piece, round);
  return {};
}

// A stage holds the piece; for a reduce-scatter that of every slice, in rank order.
void Collectives::Stage(const Transfer& transfer, Piece piece, uint8_t* stage) noexcept {
  const int64_t size = Bytes(transfer, piece.count);
  if (transfer.kind == TransferKind::kReduceScatter) {
    for (int slice = 0; slice < world_size_; ++slice) {
      if (slice == rank_) continue;
      Copy(stage + slice * size, Send(transfer, slice * transfer.count + piece.offset), size);
    }
  } else if (transfer.kind != TransferKind::kBroadcast || transfer.root == rank_) {
    Copy(stage, Send(transfer, piece.offset), size);
  }
}

void Collectives::TakeStaged(const Transfer& transfer, Piece piece, uint32_t round) noexcept {
  const bool scatters = transfer.kind == TransferKind::kReduceScatter;
  const bool inlined = Contribution(transfer) <= static_cast<int64_t>(kInlineBytes);
  for (int peer = 0; peer < world_size_; ++peer) {
    const uint8_t*& source = sources_[static_cast<size_t>(peer)];
    if (peer == rank_) {
      source = Send(transfer, (scatters ? rank_ * transfer.count : 0) + piece.offset);
      continue;
    }
    source = inlined ? rounds_.opening(peer, round).inlined : rounds_.peer(peer).stage(round);
    if (scatters) source += rank_ * Bytes(transfer, piece.count);
  }
  Take(transfer, piece);
}

void Collectives::Take(const Transfer& transfer, Piece piece) noexcept {
  const int64_t size = Bytes(transfer, piece.count);
  switch (transfer.kind) {
    case TransferKind::kAllReduce:
    case TransferKind::kReduceScatter:
      Reduce(transfer, Recv(transfer, piece.offset), static_cast<size_t>(piece.count));
      break;
    case TransferKind::kAllGather:
      for (int rank = 0; rank < world_size_; ++rank) {
        Copy(Recv(transfer, rank * transfer.count + piece.offset),
             sources_[static_cast<size_t>(rank)], size);
      }
      break;
    case TransferKind::kBroadcast:
      if (transfer.recv) {
        Copy(Recv(transfer, piece.offset), sources_[static_cast<size_t>(transfer.root)], size);
      }
      break;
    default:
      break;
  }
}

void Collectives::Reduce(const Transfer& transfer, uint8_t* out, size_t count) noexcept {
  const kit::ReduceKernels& kernels = table_.For(transfer.dtype, transfer.reduction);
  if (world_size_ == 2) return kernels.combine(out, sources_[0], sources_[1], count);
  const size_t size = SizeOf(transfer.dtype);
  for (size_t done = 0; done < count; done += kBlockElements) {
    const size_t block = std::min(kBlockElements, count - done);
    kernels.load(accumulator_.get(), sources_[0] + done * size, block);
    for (size_t rank = 1; rank < sources_.size(); ++rank) {
      kernels.fold(accumulator_.get(), sources_[rank] + done * size, block);
    }
    kernels.store(out + done * size, accumulator_.get(), block);
  }
}

// ---- Staged, by slices.

Collectives::Piece Collectives::SliceOf(Piece piece, int rank) const noexcept {
  const int64_t begin = piece.count * rank / world_size_ / kSliceElements * kSliceElements;
  const int64_t end = rank + 1 == world_size_ ? piece.count
                                              : piece.count * (rank + 1) / world_size_ /
                                                    kSliceElements * kSliceElements;
  return {begin, end - begin};
}

void Collectives::ReduceSlice(const Transfer& transfer, Piece piece, uint32_t inputs,
                              uint8_t* stage) noexcept {
  const Piece own = SliceOf(piece, rank_);
  const int64_t begin = Bytes(transfer, own.offset);
  for (int peer = 0; peer < world_size_; ++peer) {
    sources_[static_cast<size_t>(peer)] = peer == rank_ ? Send(transfer, piece.offset + own.offset)
                                                        : rounds_.peer(peer).stage(inputs) + begin;
  }
  uint8_t* const result = Recv(transfer, piece.offset + own.offset);
  Reduce(transfer, result, static_cast<size_t>(own.count));
  Copy(stage + begin, result, Bytes(transfer, own.count));
}

void Collectives::TakeSlices(const Transfer& transfer, Piece piece, uint32_t results) noexcept {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    const Piece slice = SliceOf(piece, peer);
    Copy(Recv(transfer, piece.offset + slice.offset),
         rounds_.peer(peer).stage(results) + Bytes(transfer, slice.offset),
         Bytes(transfer, slice.count));
  }
}

// ---- Direct.

// The round at the end: until all ranks are done, none may let its user write into the buffers.
Status Collectives::RunDirect(const Transfer& transfer, const WaitLimits& limits) noexcept {
  ENGINE_RETURN_IF_ERROR(FindPlaces(transfer));
  if (transfer.kind == TransferKind::kAllReduce) {
    ReduceDirect(transfer);
  } else {
    Take(transfer, {0, transfer.count});
  }
  uint32_t done = 0;
  ENGINE_RETURN_IF_ERROR(Publish(limits, &done, [](uint8_t*) {}));
  return rounds_.AwaitAll(done, limits, limits.round_spin_ns);
}

// An all-reduce and a reduce-scatter use one slice of each buffer, the others the whole of it.
Status Collectives::FindPlaces(const Transfer& transfer) noexcept {
  const bool all_reduces = transfer.kind == TransferKind::kAllReduce;
  const Piece slice = SliceOf({0, transfer.count}, rank_);
  int64_t element = 0;
  if (all_reduces) element = slice.offset;
  if (transfer.kind == TransferKind::kReduceScatter) element = rank_ * transfer.count;
  const int64_t skip = Bytes(transfer, element);
  const auto whole = static_cast<uint64_t>(Contribution(transfer));
  for (int peer = 0; peer < world_size_; ++peer) {
    const auto i = static_cast<size_t>(peer);
    if (peer == rank_) {
      sources_[i] = Send(transfer, element);
      targets_[i] = all_reduces ? Recv(transfer, element) : nullptr;
      continue;
    }
    if (transfer.kind == TransferKind::kBroadcast && peer != transfer.root) continue;
    const ArenaPlaces& places = rounds_.opening(peer, opened_round_).places;
    ENGINE_ASSIGN_OR_RETURN(uint8_t* const from,
                            rounds_.peer(peer).Place(places.send_arena, places.send_offset, whole));
    sources_[i] = from + skip;
    if (!all_reduces) continue;
    ENGINE_ASSIGN_OR_RETURN(uint8_t* const to,
                            rounds_.peer(peer).Place(places.recv_arena, places.recv_offset, whole));
    targets_[i] = to + skip;
  }
  return {};
}

// Each rank reads its slice of all sources and writes it into all targets. Slices share no byte, so
// in place nobody overwrites what another has yet to read.
void Collectives::ReduceDirect(const Transfer& transfer) noexcept {
  const auto count = static_cast<size_t>(SliceOf({0, transfer.count}, rank_).count);
  if (world_size_ == 2) {
    return table_.For(transfer.dtype, transfer.reduction)
        .combine_twice(targets_[0], targets_[1], sources_[0], sources_[1], count);
  }
  const size_t size = SizeOf(transfer.dtype);
  for (size_t done = 0; done < count; done += kBlockElements) {
    const size_t block = std::min(kBlockElements, count - done);
    uint8_t* const result = targets_[static_cast<size_t>(rank_)];
    Reduce(transfer, result, block);
    for (uint8_t*& target : targets_) Copy(target, result, static_cast<int64_t>(block * size));
    for (uint8_t*& target : targets_) target += block * size;
    for (const uint8_t*& source : sources_) source += block * size;
  }
}

}  // namespace engine::shm
