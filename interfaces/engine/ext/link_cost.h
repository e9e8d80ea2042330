// What a communicator puts on the links beside the payload, for those who predict how long
// transfers take (engine simulate).
#pragma once

#include <cstdint>
#include <string_view>

namespace engine {

// Communicator::Query(kLinkCostId) gives a LinkCost or null. It lives as long as the communicator.
constexpr std::string_view kLinkCostId = "engine.link_cost/1";

struct LinkCost {
  // A rank sends its part of a transfer in messages of at most so much, and each round of them
  // costs a latency; of servers: what has begun to be sent, and is not interrupted by what is more
  // urgent. 0: as one message.
  uint64_t message_bytes = 0;
  // All-reduces of more than two ranks: up to this size each rank sends all that it has to every
  // other; above it they reduce and then gather a slice each.
  uint64_t exchange_up_to_bytes = 0;
  uint64_t header_bytes = 0;  // of the communicator's own, in front of each message
};

}  // namespace engine
