// One order of transfers on all ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>

#include "core/base/store.h"
#include "core/exec/step_loop.h"
#include "engine/communicator.h"
#include "engine/host.h"

namespace engine::exec {

// Not synchronised but for what says otherwise.
class OrderAgreement {
 public:
  // `graph` and `store` are borrowed; the store may be null if rank 0 does not lead. `leads`: rank 0
  // decides.
  OrderAgreement(const TaskGraph& graph, const RankInfo& rank, bool leads, base::Store* store);

  bool follows() const { return leads_ && rank_.rank != 0; }
  // Gives a transfer its place in the order.
  void Number(Transfer* transfer) { transfer->sequence = ++sequence_; }
  // Tells the others of it before it is submitted, if this rank decides. Needs no lock.
  Status Announce(const Transfer& transfer, uint32_t task);

  // Of a rank that follows: what rank 0 has announced. kInternal when that is no ticket.
  Status TakeTicket(std::string_view text);
  // The transfer of the next ticket if it is ready in `loop`, which is told; else kNoTask.
  Result<uint32_t> NextTicket(StepLoop& loop);

 private:
  // As it travels: the bytes of the two numbers, in the order of the host; ranks of one run are of
  // one architecture, as what they exchange is.
  struct Ticket {
    uint64_t sequence = 0;
    uint64_t task = 0;
  };

  const TaskGraph& graph_;
  const RankInfo rank_;
  const bool leads_;
  base::Store* const store_;
  uint64_t sequence_ = 0;       // of the last transfer, over the whole run
  std::deque<Ticket> tickets_;  // of transfers that were not started yet
};

}  // namespace engine::exec
