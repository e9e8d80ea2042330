// Communicators of some of the ranks: what a communicator may offer beside transfers.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/communicator.h"
#include "engine/status.h"

namespace engine {

constexpr int32_t kNoColor = -1;
// Query<SubGroups> of a Communicator gives one or null, the same on all ranks of a run. It lives as
// long as the communicator.
ENGINE_INTERFACE(SubGroups, Interface, "engine.sub_groups.draft/1", Split);
class SubGroupsBase : public Implements<SubGroups> {
 public:
  // Split gives a communicator of the ranks with the same color, in the order of key, and none for
  // kNoColor; kInvalidArgument, which is no failure, for another color: nothing has happened then.
  // It belongs to the caller, has the options of this one and may outlive it; the Host must outlive
  // both. Its ranks, Transfer::root among them, count from 0, where keys are equal in the order of
  // this communicator; its errors name ranks as those of this one do.
  //
  // The two have nothing in common: not the order of submission, not a transfer's wait for those
  // before it, not an Abort or a failure after Split. While they work at the same time, the work of
  // each must be able to end without the other's.
  //
  // Collective over all ranks of this communicator, also those without a colour, and at the same
  // place in the order of submission, like a transfer; it waits for the other ranks, not for
  // transfers to end. It has the deadline of creating a communicator and the same errors, which
  // name the first rank that has not come. Such an error is a failure of this communicator as well.
  // [io-lane]
  virtual Status Split(int32_t color, int32_t key, Communicator** out) noexcept = 0;

 protected:
  ~SubGroupsBase() = default;
};

}  // namespace engine
