// What a communicator puts on the links beside the payload, for those who predict how long
// transfers take (engine simulate).
#pragma once

#include <cstdint>

#include "engine/abi/interface.h"

namespace engine {

struct LinkCost {
  uint64_t struct_size = sizeof(LinkCost);
  // A rank sends messages of at most message_bytes, with header_bytes in front of each, and each
  // round of them costs a latency; of servers: what has begun to be sent, and is not interrupted by
  // what is more urgent. 0: as one message.
  uint64_t message_bytes = 0;
  // All-reduces of more than two ranks: up to this size each rank sends all that it has to every
  // other; above it they reduce and then gather a slice each.
  uint64_t exchange_up_to_bytes = 0;
  uint64_t header_bytes = 0;  // of the communicator's own, in front of each message
};
ENGINE_LAYOUT(LinkCost, struct_size, message_bytes, exchange_up_to_bytes, header_bytes);

// Query<LinkModel> of a Communicator gives one or null. It lives as long as the communicator.
ENGINE_INTERFACE(LinkModel, Interface, "engine.link_model.draft/1", cost);
class LinkModelBase : public Implements<LinkModel> {
 public:
  virtual LinkCost cost() const noexcept = 0;  // [any-thread]

 protected:
  ~LinkModelBase() = default;
};

}  // namespace engine
