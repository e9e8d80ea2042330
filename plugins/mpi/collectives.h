// Transfers as non-blocking collectives of MPI, in chunks.
//
//   all-reduce      := chunk of { all-to-all of messages, sum of slices, all-gather of sums } *
//                    | all-gather of a message, sum                                   if it is small
//   reduce-scatter  := chunk of { all-to-all of messages, sum of slices } *
//   all-gather      := chunk of { all-gather of a message } *
//   broadcast       := all-gather of TransferId, chunk of { broadcast } *
//   barrier         := all-gather of TransferId
//   message         := TransferId data
//
// The ranks add up in rank order (kit/reduce.h), so that sums have the bits of tcp and shm. Or MPI
// does (Settings::mpi_reduces):
//
//   all-reduce      := all-gather of TransferId, chunk of { all-reduce } *
//   reduce-scatter  := all-gather of TransferId, chunk of { reduce-scatter } *
//
// MPI matches collectives by their order alone: what ids show to be another transfer is refused,
// whatever has come with it. A collective cannot be cancelled, so MPI reads and writes memory of
// this object only, which stays for ever when a transfer was given up.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/communicator.h"
#include "engine/host.h"
#include "kit/describe.h"
#include "kit/lanes.h"
#include "kit/progress.h"
#include "kit/work.h"
#include "library.h"

namespace engine::mpi {

struct Settings {
  size_t message_bytes = 1 << 20;  // of a chunk that go to one rank, at most
  bool mpi_reduces = false;        // MPI_Iallreduce and MPI_Ireduce_scatter_block
};

class Collectives final : public kit::Transport {
 public:
  // Takes over `comm`, whose ranks are those of `ranks`. Borrows the rest.
  Collectives(Library& library, MPI_Comm comm, const RankInfo& ranks, const Settings& settings,
              kit::Progress& progress);
  ~Collectives() override;

  Status Run(kit::PooledWork& work) noexcept override;
  // MPI does not say for whom. Each rank names the next one, which tells in turn whether it waits:
  // so the search (kit/progress.h) comes to the rank that does not.
  int32_t WaitingFor() const noexcept override {
    return running_ ? (ranks_.rank + 1) % ranks_.world_size : -1;
  }

  // Ends Run. `tells`: also that of the other ranks. [any-thread]
  void Stop(bool tells) noexcept;

 private:
  // What a transfer is made of.
  enum class Way { kGather, kExchange, kBroadcast, kMpiReduces };
  // A chunk under way.
  struct Chunk {
    std::vector<std::byte> sent, received;  // a message for each rank
    std::vector<int> counts, starts;        // bytes of messages
    MPI_Request request = MPI_REQUEST_NULL;
    Way way = Way::kGather;
    int64_t first = 0, count = 0;  // elements of each part of the buffers
    size_t bytes = 0;              // of these
    bool cut = false;              // into a slice for each rank; else each has all of it
    size_t slice = 0;              // bytes of a slice; the last may have less
    size_t head = 0;               // bytes of the id in front of a slice, or 0
    size_t stride = 0;             // bytes between messages
    size_t part = 0;               // bytes between slices in a buffer

    size_t SliceOf(size_t rank) const noexcept;  // bytes
  };
  // What MPI may use.
  struct Memory {
    Chunk chunks[2];
    std::vector<kit::TransferId> ids;    // of all ranks
    std::vector<MPI_Request> farewells;  // to each
  };

  Status Move(const Transfer& transfer) noexcept;
  Way WayOf(const Transfer& transfer) const noexcept;
  // The chunk that begins at element `first`.
  void Shape(const Transfer& transfer, Chunk& chunk, int64_t first) const noexcept;
  Status Start(const Transfer& transfer, Chunk& chunk) noexcept;
  Status Finish(const Transfer& transfer, Chunk& chunk) noexcept;  // what has come
  void Pack(const Transfer& transfer, Chunk& chunk) noexcept;
  void Unpack(const Chunk& chunk, const std::byte* messages, std::byte* to) const noexcept;
  Status CheckIds(const Transfer& transfer, const void* messages, size_t stride) const noexcept;
  // The reduction of this rank's `own` slice and those received.
  void Reduce(const Transfer& transfer, const Chunk& chunk, const std::byte* own, std::byte* out,
              size_t bytes) const noexcept;
  MPI_Op OperationOf(const Transfer& transfer) const noexcept;

  Status Wait(MPI_Request* request, bool all_came) noexcept;
  Status CheckFarewells() noexcept;
  Status StatusOf(int error) const noexcept;
  int32_t FirstDead() const noexcept;  // where MPI knows; -1: nobody

  Library& library_;
  MPI_Comm comm_;
  const RankInfo ranks_;
  const size_t size_;  // of the world
  const size_t message_bytes_;
  const bool mpi_reduces_;
  const bool has_core_;  // this rank
  kit::Progress& progress_;
  MPI_Op operations_[2][3] = {};  // of MPI, for 16-bit floats
  std::unique_ptr<Memory> memory_;
  std::atomic<bool> running_{false}, stopped_{false};
  std::atomic<bool> broken_{false};  // MPI may still use memory_ and comm_
};

}  // namespace engine::mpi
