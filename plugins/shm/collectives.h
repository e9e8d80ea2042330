// The transfers, as rounds.
//
//   all-reduce   two ranks, or few bytes: every rank stages everything and reduces everything, so
//                there is one round to wait for per piece; else every rank reduces a slice of each
//                piece and stages the result for the others
//   others       every rank stages what others need, and takes what it needs
//   direct       when all buffers are in arenas: nothing is staged; after the opening everybody
//                works on the buffers of everybody, and a last round says that it is done
//
// Pieces are small enough to stay in the cache of a core between the one who stages and the one
// who reads, and the next piece is staged before the last is awaited.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arenas.h"
#include "engine/communicator.h"
#include "kernels.h"
#include "kit/work.h"
#include "rounds.h"

namespace engine::shm {

class Collectives {
 public:
  Collectives(Rounds& rounds, const Arenas& arenas);  // both borrowed

  // Publishes the opening of `transfer`, with its bytes if they are few. False when peers are still
  // reading what would be overwritten; then Run does it. Never blocks.
  bool TryOpen(const Transfer& transfer) noexcept;

  // Whether Run would end without waiting or moving more than a few kilobytes.
  bool CanEndNow(const Transfer& transfer) noexcept;

  // The rest of the transfer, which is marked as started if it was not opened.
  Status Run(kit::PooledWork& work, bool opened, const WaitLimits& limits) noexcept;

 private:
  // Elements `offset` .. `offset + count` of a transfer's `count`.
  struct Piece {
    int64_t offset;
    int64_t count;
  };

  // Bytes that each rank brings; the same on all ranks.
  int64_t Contribution(const Transfer& transfer) const noexcept;
  bool IsFew(int64_t contribution) const noexcept;
  void Open(const Transfer& transfer) noexcept;
  void OfferPlaces(const Transfer& transfer, Opening* opening) const noexcept;
  Status CheckOpenings() noexcept;
  int DirectRanks() noexcept;  // that offer their buffers

  int64_t PieceElements(const Transfer& transfer) const noexcept;
  bool IsSliced(const Transfer& transfer) const noexcept;  // where it is staged in pieces
  template <typename Fill>
  Status Publish(const WaitLimits& limits, uint32_t* round, const Fill& fill) noexcept;
  Status RunPieces(const Transfer& transfer, const WaitLimits& limits) noexcept;
  Status AwaitAndTake(const Transfer& transfer, Piece piece, uint32_t round,
                      const WaitLimits& limits) noexcept;
  void Stage(const Transfer& transfer, Piece piece, uint8_t* stage) noexcept;
  void TakeStaged(const Transfer& transfer, Piece piece, uint32_t round) noexcept;
  // Makes results of sources_.
  void Take(const Transfer& transfer, Piece piece) noexcept;
  void Reduce(const Transfer& transfer, uint8_t* out, size_t count) noexcept;

  Piece SliceOf(Piece piece, int rank) const noexcept;  // offset within the piece
  void ReduceSlice(const Transfer& transfer, Piece piece, uint32_t inputs, uint8_t* stage) noexcept;
  void TakeSlices(const Transfer& transfer, Piece piece, uint32_t results) noexcept;

  Status RunDirect(const Transfer& transfer, const WaitLimits& limits) noexcept;
  Status FindPlaces(const Transfer& transfer) noexcept;
  void ReduceDirect(const Transfer& transfer) noexcept;

  Rounds& rounds_;
  const Arenas& arenas_;
  const kit::KernelTable& table_;
  const int rank_, world_size_;
  uint32_t opened_round_ = 0;            // of the transfer under way
  std::vector<const uint8_t*> sources_;  // by rank: what is reduced or copied next
  std::vector<uint8_t*> targets_;        // by rank: where a direct all-reduce writes
  std::unique_ptr<uint8_t[]> accumulator_;
};

}  // namespace engine::shm
