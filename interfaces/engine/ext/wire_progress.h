// Whether transfers that take long still move.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/communicator.h"

namespace engine {

// Query<WireProgress> of a Communicator gives a WireProgress or null. It lives as long as the
// communicator.
ENGINE_INTERFACE(WireProgress, Interface, "engine.wire_progress.draft/1", bytes_moved);
class WireProgressBase : public Implements<WireProgress> {
 public:
  // bytes_moved() grows with what this rank moves, and never shrinks. It also grows when a rank
  // that it waits for is seen to move something. As long as it does so no transfer is late: see
  // Transfer::timeout_ms. Only a change counts, the unit does not. [any-thread]
  virtual uint64_t bytes_moved() const noexcept = 0;

 protected:
  ~WireProgressBase() = default;
};

}  // namespace engine
