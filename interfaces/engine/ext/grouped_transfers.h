// Several transfers in one launch: what a communicator may offer beside single ones.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/communicator.h"
#include "engine/status.h"

namespace engine {

// Query<GroupedTransfers> of a Communicator gives one or null, the same on all ranks of a run. It
// lives as long as the communicator.
ENGINE_INTERFACE(GroupedTransfers, Interface, "engine.grouped_transfers.draft/1", SubmitGroup);
class GroupedTransfersBase : public Implements<GroupedTransfers> {
 public:
  // Returns at once. Transfers are submitted as one: *out is done when all of them are. It fails as
  // a whole when one of them does, or is not done by the earliest of their deadlines. The group has
  // one place in the order of submission, and every rank must submit the same one: as many, of the
  // same kinds and counts, in the same order.
  //
  // Within a group there is no order: transfers may run at the same time, so what one writes no
  // other may read or write. Those with a stream have the same one. No barriers.
  //
  // The list is read before the function returns; it may allocate. kInvalidArgument for an empty
  // list and for one with a barrier; no Work is made then. The same for what else breaks these
  // rules, as far as one rank can see; other errors are those of Communicator::Submit. [io-lane]
  virtual Status SubmitGroup(Array<const Transfer> transfers, Work** out) noexcept = 0;

 protected:
  ~GroupedTransfersBase() = default;
};

}  // namespace engine
