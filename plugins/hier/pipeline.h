// One transfer as transfers inside of hosts and between them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/communicator.h"
#include "engine/device.h"
#include "engine/ext/wire_progress.h"
#include "engine/host.h"
#include "engine/status.h"
#include "hosts.h"
#include "kit/failure.h"
#include "kit/lanes.h"
#include "kit/progress.h"
#include "queued_work.h"

namespace engine::hier {

// A communicator of some ranks.
struct Level {
  // Collective over `ranks`, one of which is `own`.
  static Result<Level> Make(Host& host, std::string_view plugin, std::string_view label,
                            const std::vector<int32_t>& ranks, int32_t own);

  std::unique_ptr<Communicator> communicator;
  WireProgress* wire = nullptr;  // or null
  int32_t next = 0;              // the rank after this one, in the numbers of the run
};
// Inside of hosts, and between them.
using Levels = std::array<Level, 2>;

// A transfer goes in chunks through stages: while one chunk is between the hosts the next one is
// reduced inside.
//
//                    hosts with as many ranks                   others
//   all-reduce       reduce-scatter, ALL-REDUCE, all-gather     all-reduce, ALL-REDUCE, broadcast
//   reduce-scatter   reduce-scatter, REDUCE-SCATTER             as an all-reduce
//   all-gather       ALL-GATHER, all-gather                     all-gather, ALL-GATHER, broadcast
//   broadcast        BROADCAST, broadcast                       broadcast, BROADCAST, broadcast
//   barrier          barrier, BARRIER, barrier                  the same
//
// In capitals: between hosts, of the ranks with the same place in their hosts, else of their leaders,
// the first ones. With one host, or one rank on each, a transfer is one of that level.
//
// In memory of a device each slot has a stream, on which stages and copies follow one another: Queue
// asks for all of them and waits for none.
class Pipeline final : public kit::Transport {
 public:
  // All but `hosts` are borrowed. A rank moves `part_bytes` of a chunk between the hosts. `device`: an
  // Accelerator, in whose memory transfers are; else null.
  static Result<std::unique_ptr<Pipeline>> Create(Hosts hosts, const Levels& levels,
                                                  size_t part_bytes, Device* device,
                                                  kit::Failure& failure, kit::Progress& progress);

  Status Run(kit::PooledWork& work) noexcept override;
  // With a device; from here on `work` ends by itself. An error: nothing has happened. [io-lane]
  Status Queue(QueuedWork& work) noexcept;
  int32_t WaitingFor() const noexcept override;

 private:
  static constexpr size_t kStages = 3, kSlots = kStages + 1;
  struct Stage {
    const Level* level = nullptr;  // null: nothing to do for this rank
    Transfer transfer;
  };
  struct Slot {                   // of a chunk
    size_t begin = 0, count = 0;  // elements of each rank's part, or of the whole
    std::array<Stage, kStages> stages;
    Work* work = nullptr;  // the stage under way
    const Level* level = nullptr;
    const std::byte* result = nullptr;  // what Finish takes to where it belongs, or null
    Status copied;
    std::shared_ptr<std::byte[]> bytes;
    std::unique_ptr<Stream> stream;  // these two with a device
    std::unique_ptr<Event> mark;
  };

  Pipeline(Hosts hosts, const Levels& levels, size_t part_bytes, Device* device,
           kit::Failure& failure, kit::Progress& progress);
  Status MakeSlot(Slot& slot);
  void Take(kit::PooledWork& work) noexcept;
  Status QueueChunks() noexcept;
  Status RunChunks() noexcept;
  Status Start(Slot& slot, size_t stage, size_t chunk) noexcept;
  Status Await(Slot& slot) noexcept;

  size_t ChunkCount() const noexcept;
  size_t Chunks() const noexcept {
    const size_t size = ChunkCount();
    return std::max<size_t>(1, (count_ + size - 1) / size);
  }
  void Prepare(Slot& slot) noexcept;
  void PrepareAllReduce(Slot& slot) noexcept;
  void PrepareReduceScatter(Slot& slot) noexcept;
  void PrepareAllGather(Slot& slot) noexcept;
  void PrepareBroadcast(Slot& slot) noexcept;
  void SumOverLeaders(Slot& slot, const std::byte* in, std::byte* out, size_t count) noexcept;
  void Set(Slot& slot, size_t stage, TransferKind kind, const void* send, void* recv, size_t count,
           size_t root = 0) const noexcept;
  Status Finish(Slot& slot) const noexcept;
  void Copy(Slot& slot, std::byte* to, const std::byte* from, size_t bytes) const noexcept;
  void Zero(Slot& slot, std::byte* to, size_t bytes) const noexcept;

  // Where a rank's elements lie in the bytes of a slot, in parts of a rank.
  size_t PlaceOf(size_t rank) const noexcept {
    const Hosts::Place& place = hosts_.places[rank];
    return hosts_.even ? place.local * hosts_.count() + place.peer
                       : place.host * hosts_.widest() + place.local;
  }
  size_t Bytes(size_t count) const noexcept { return count * SizeOf(transfer_.dtype); }

  const Hosts hosts_;
  const Levels& levels_;
  const Level* const only_;  // that moves every transfer whole, or null
  const bool is_between_;    // this rank moves bytes between hosts
  const size_t part_bytes_;
  Device* const device_;  // or null
  kit::Failure& failure_;
  kit::Progress& progress_;
  std::array<Slot, kSlots> slots_;
  kit::PooledWork* work_ = nullptr;  // the running one, and what follows from it:
  QueuedWork* queued_ = nullptr;     // the same, with a device
  Transfer transfer_;
  size_t count_ = 0;
  const std::byte* send_ = nullptr;
  std::byte* recv_ = nullptr;
  std::atomic<const Level*> waits_in_{nullptr};  // these two publish nothing
  mutable std::atomic<uint64_t> moved_{0};       // on both levels, when last looked
};

}  // namespace engine::hier
