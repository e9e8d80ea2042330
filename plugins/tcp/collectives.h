// The collectives as exchanges of parts between all pairs of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "channel.h"
#include "engine/communicator.h"
#include "kit/lanes.h"

namespace engine::tcp {

// Runs transfers one after another on one channel. The result is the same on all ranks to the bit,
// and in every run: each element is reduced in rank order, on the rank that owns it or on all.
class Collectives final : public kit::Transport {
 public:
  Collectives(Connections& connections, int lane, kit::Progress& progress);

  Status Run(kit::PooledWork& work) noexcept override;
  int32_t WaitingFor() const noexcept override { return channel_.waiting_for(); }

 private:
  struct Range {
    int64_t begin = 0;
    int64_t count = 0;
  };
  // Calls act(peer) for each.
  template <typename Act>
  Status EachPeer(const Act& act) noexcept;
  // Calls send(step) for each step and receive(step) kAhead steps later: see channel.h.
  template <typename Send, typename Receive>
  Status Pipeline(int64_t count, const Send& send, const Receive& receive) noexcept;
  Status Exchange() noexcept;
  Status ReduceScatterAllGather() noexcept;
  Status ReduceScatter() noexcept;
  Status AllGather() noexcept;
  Status Broadcast() noexcept;
  Status Barrier() noexcept;

  // out = reduction over ranks, in rank order, of `own` here and the next part of every peer.
  Status ReducePart(const std::byte* own, std::byte* out, int64_t count) noexcept;
  Status SendToAll(const std::byte* data, int64_t count) noexcept;

  int64_t StepCount(int64_t count) const noexcept;
  Range PartOf(Range whole, int64_t step) const noexcept;
  size_t Bytes(int64_t count) const noexcept;

  Channel channel_;
  const std::unique_ptr<std::byte[]> accumulator_;
  Transfer transfer_;  // the running one, and what follows from it:
  const std::byte* send_ = nullptr;
  std::byte* recv_ = nullptr;
  int64_t part_count_ = 1;  // elements of a full part
};

}  // namespace engine::tcp
