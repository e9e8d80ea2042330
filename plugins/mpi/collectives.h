// Transfers as non-blocking collectives of MPI, in chunks. Each message has the transfer's id in front.
//
//   all-reduce      := { all-to-all of messages, sum of this rank's slice, all-gather of sums } *
//                    | all-gather of a message, sum                         if it is small
//   reduce-scatter  := { all-to-all of messages, sum of this rank's slice } *
//   all-gather      := { all-gather of a message } *
//   broadcast       := { broadcast of a message } *
//   barrier         := all-gather of an id
//
// The ranks add up in rank order (kit/reduce.h), so that sums have the bits of tcp and shm; those of
// MPI have the order and the rounding of the library.
//
// MPI matches collectives by their order alone: what ids show to be another transfer is refused. A
// collective cannot be cancelled, so MPI reads and writes memory of this object only, which stays
// for ever when a transfer was given up.
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

class Collectives final : public kit::Transport {
 public:
  // Takes over `comm`, whose ranks are those of `ranks`. Borrows the rest. `message_bytes`: of a
  // chunk that go to one rank, at most.
  Collectives(Library& library, MPI_Comm comm, const RankInfo& ranks, size_t message_bytes,
              kit::Progress& progress);
  ~Collectives() override;

  Status Run(kit::PooledWork& work) noexcept override;
  // MPI does not say for whom. Each rank names the next one, which tells in turn whether it waits:
  // so the search (kit/progress.h) comes to the rank that does not.
  int32_t WaitingFor() const noexcept override {
    return running_ ? (ranks_.rank + 1) % ranks_.world_size : -1;
  }

  // Ends Run. `tells`: sends the other ranks a message that ends theirs. [any-thread]
  void Stop(bool tells) noexcept;

 private:
  enum class Way { kGather, kExchange, kBroadcast };
  // A chunk under way; all in bytes.
  struct Chunk {
    std::vector<std::byte> sent, received;  // a message for each rank
    std::vector<int> counts, starts;        // of messages
    MPI_Request request = MPI_REQUEST_NULL;
    Way way = Way::kGather;
    size_t first = 0, size = 0;  // of each part of the buffers
    bool cut = false;            // into a slice for each rank; else each has all of it
    size_t slice = 0;            // the last may be shorter
    size_t stride = 0;           // between messages
    size_t part = 0;             // between slices in a buffer

    size_t SliceOf(size_t rank) const noexcept;
  };
  // What MPI may use.
  struct Memory {
    Chunk chunks[2];
    std::vector<MPI_Request> aborts;  // messages to each rank
  };

  Status Move(const Transfer& transfer) noexcept;
  void Shape(const Transfer& transfer, size_t first, Chunk& chunk) const noexcept;
  Status Start(const Transfer& transfer, Chunk& chunk) noexcept;
  Status Finish(const Transfer& transfer, Chunk& chunk) noexcept;  // what has come
  Status CheckIds(const Transfer& transfer, const Chunk& chunk) const noexcept;
  // The reduction of this rank's slice and those received.
  void Reduce(const Transfer& transfer, const Chunk& chunk, const std::byte* own, std::byte* out,
              size_t size) const noexcept;
  void Unpack(const Chunk& chunk, const std::byte* messages, std::byte* to) const noexcept;

  Status Wait(MPI_Request* request, bool all_came) noexcept;
  Status StatusOf(int error) const noexcept;

  Library& library_;
  MPI_Comm comm_;
  const RankInfo ranks_;
  const size_t rank_, size_;  // of the world
  const size_t message_bytes_;
  const bool has_core_;  // this rank
  kit::Progress& progress_;
  std::unique_ptr<Memory> memory_;
  std::atomic<bool> running_{false}, stopped_{false};
  std::atomic<bool> broken_{false};  // MPI may still use memory_ and comm_
};

}  // namespace engine::mpi
