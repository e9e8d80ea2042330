// Transfers as non-blocking collectives of MPI, in chunks.
//
//   transfer := opening chunk*
//   opening  := all-gather of (TransferId [all data of a small all-reduce or all-gather])
//   chunk    := all-reduce:     all-to-all of slices, sum of this rank's slice, all-gather of sums
//               reduce-scatter: all-to-all of slices, sum of this rank's slice
//               all-gather, broadcast: the same of MPI
//
// The ranks add up in rank order (kit/reduce.h), so that sums have the bits of tcp and shm; or MPI
// does (Settings::mpi_reduces).
//
// MPI matches collectives by their order alone: what the opening shows to be another transfer is
// refused, whatever has been received with it. A collective cannot be cancelled, so MPI reads and
// writes memory of this object only, which stays for ever when a transfer was given up.
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
  size_t message_bytes = 128 << 10;  // of a chunk that go to one rank, at most
  bool mpi_reduces = false;          // MPI_Iallreduce and MPI_Ireduce_scatter_block
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
  // A chunk under way.
  struct Chunk {
    std::vector<std::byte> sent, received;  // a message for each rank
    MPI_Request request = MPI_REQUEST_NULL;
    int64_t first = 0, count = 0;  // elements of each part of the buffers
    size_t message = 0;            // bytes for each rank
  };
  // What MPI may use.
  struct Memory {
    Chunk chunks[2];
    std::vector<std::byte> openings;     // of all ranks
    std::vector<MPI_Request> farewells;  // to each
  };

  Status Move(const Transfer& transfer) noexcept;
  size_t CarriedBytes(const Transfer& transfer) const noexcept;
  Status CheckIds(const kit::TransferId& own, size_t block) const noexcept;
  Status StartChunk(const Transfer& transfer, int64_t number) noexcept;
  Status FinishChunk(const Transfer& transfer, int64_t number) noexcept;
  int64_t ElementsPerChunk(const Transfer& transfer) const noexcept;
  // The reduction of an array of each rank; they are `stride` bytes apart.
  void Reduce(const Transfer& transfer, const std::byte* from, size_t stride, void* out,
              size_t count) const noexcept;
  MPI_Op OperationOf(const Transfer& transfer) const noexcept;

  Status Wait(MPI_Request* request) noexcept;
  Status CheckFarewells() noexcept;
  Status StatusOf(int error) const noexcept;

  Library& library_;
  MPI_Comm comm_;
  const RankInfo ranks_;
  const size_t size_;  // of the world
  const size_t message_bytes_;
  const bool mpi_reduces_;
  const std::chrono::microseconds spin_;  // before a thread that waits yields
  kit::Progress& progress_;
  MPI_Op operations_[2][3] = {};  // of MPI, for 16-bit floats
  std::unique_ptr<Memory> memory_;
  std::atomic<bool> running_{false}, stopped_{false};
  std::atomic<bool> broken_{false};  // MPI may still use memory_ and comm_
};

}  // namespace engine::mpi
