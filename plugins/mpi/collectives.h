// Transfers as non-blocking collectives of MPI.
//
//   transfer := opening chunk*
//   opening  := all-gather of ids, each with what its rank sends if that is small: no chunk follows.
//               Among few ranks each sends its message to each, which takes less time by half
//   chunk    := all-to-all of slices, sum of this rank's, all-gather of sums     all-reduce
//             | all-to-all of slices, sum of this rank's                         reduce-scatter
//             | all-gather                                                       all-gather
//             | broadcast                                                        broadcast
//
// The ranks add up in rank order (kit/reduce.h), so that sums have the bits of tcp and shm; those of
// MPI have the order and the rounding of the library.
//
// MPI matches collectives by their order alone: what ids show to be another transfer is refused. A
// collective cannot be cancelled, so MPI reads and writes memory of this object only: arenas that it
// has lent, else copies. What a transfer was given up in stays for ever.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "arenas.h"
#include "engine/communicator.h"
#include "engine/device.h"
#include "engine/host.h"
#include "kit/describe.h"
#include "kit/lanes.h"
#include "kit/progress.h"
#include "kit/work.h"
#include "library.h"

namespace engine::mpi {

// Where transfers are copied on a device.
struct OnDevice {
  Device* device = nullptr;
  std::unique_ptr<Stream> stream;
};

class Collectives final : public kit::Transport {
 public:
  // Takes over `comm`, whose ranks are those of `ranks`. Borrows the rest. `message_bytes`: of a
  // chunk that go to one rank, at most. `place`: buffers are memory of
  // its device, or else null. Collective.
  Collectives(Library& library, MPI_Comm comm, const RankInfo& ranks, size_t message_bytes,
              kit::Progress& progress, const OnDevice* place);
  ~Collectives() override;

  Status Run(kit::PooledWork& work) noexcept override;
  // MPI does not say for whom. Each rank names the next one, which tells in turn whether it waits:
  // so the search (kit/progress.h) comes to the rank that does not.
  int32_t WaitingFor() const noexcept override {
    return running_ ? (ranks_.rank + 1) % ranks_.world_size : -1;
  }

  // Ends Run. `tells`: sends the other ranks a message that ends theirs. [any-thread]
  void Stop(bool tells) noexcept;

  SharedMemory& memory() noexcept { return memory_->arenas; }

 private:
  // A chunk under way; all in bytes.
  struct Chunk {
    std::byte *copies = nullptr, *received = nullptr;  // a slice for each rank, where MPI has them
    std::vector<std::byte> host;                       // both, or what a device has received
    std::vector<int> counts, starts, counts_received;  // of slices
    std::vector<int> starts_received;
    MPI_Request request = MPI_REQUEST_NULL;
    size_t first = 0, size = 0;  // of each part of the buffers
    bool is_cut = false;         // into a slice for each rank; else each has all of it
    size_t slice = 0;            // the last may be shorter

    size_t SliceOf(size_t rank) const noexcept;
  };
  using Requests = std::vector<MPI_Request>;
  // What MPI may use.
  struct Memory {
    explicit Memory(const std::atomic<bool>& is_broken) : arenas(is_broken) {}
    Arenas arenas;
    std::vector<std::byte> opening;  // a message of each rank
    Requests opened;                 // to each and from each, or one
    Chunk chunks[2];
    Requests aborts;  // messages to each rank
  };

  Status Move(const Transfer& transfer) noexcept;
  Status Open(const Transfer& transfer, size_t sent) noexcept;
  int SendToEach(std::byte* messages, size_t bytes) noexcept;
  Status AwaitOpening(const Transfer& transfer) noexcept;
  void TakeFromOpening(const Transfer& transfer) noexcept;
  Status Start(const Transfer& transfer, size_t first, Chunk& chunk) noexcept;
  Status Exchange(const Transfer& transfer, Chunk& chunk) noexcept;
  Status Gather(Chunk& chunk, std::byte* slices, size_t step) noexcept;
  Status Finish(const Transfer& transfer, Chunk& chunk) noexcept;
  // The reduction of `own` and of what the others have sent, which lies `step` bytes apart.
  void Reduce(const Transfer& transfer, const std::byte* own, const std::byte* theirs, size_t step,
              std::byte* out, size_t size) const noexcept;

  Status ReduceChunk(const Transfer& transfer, Chunk& chunk, const std::byte* own, std::byte* out,
                     size_t size) noexcept;
  void Copy(void* to, const void* from, size_t bytes) noexcept;
  Status Sync() noexcept;

  Status Wait(std::span<MPI_Request> requests, bool all_came) noexcept;
  Status StatusOf(int error) const noexcept;

  Library& library_;
  MPI_Comm comm_;
  const RankInfo ranks_;
  const size_t rank_, size_;    // of the world
  const size_t message_bytes_;  // of a rank, at most
  const bool is_few_;           // ranks: openings go to each
  const size_t opening_bytes_;  // of a rank, at most
  const bool has_core_;         // this rank
  kit::Progress& progress_;
  const OnDevice* const place_;          // or null
  Status copied_;                        // the first error of a copy
  size_t opened_ = 0;                    // of the running transfer: requests of the opening,
  size_t stride_ = 0;                    // bytes between its messages,
  bool reads_ = false, writes_ = false;  // and whether MPI uses its buffers, not copies
  std::atomic<bool> running_{false}, stopped_{false};
  std::atomic<bool> broken_{false};  // MPI may still use memory_ and comm_
  std::unique_ptr<Memory> memory_;
};

}  // namespace engine::mpi
