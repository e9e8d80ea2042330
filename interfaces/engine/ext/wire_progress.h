// Whether transfers that take long still move.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/communicator.h"

namespace engine {

// Communicator::Query(kWireProgressId) gives a WireProgress or null. It lives as long as the
// communicator.
constexpr std::string_view kWireProgressId = "engine.wire_progress/1";

class WireProgress {
 public:
  // Grows with what this rank moves, and when a rank that it waits for is seen to move something.
  // As long as it does so no transfer is late: see Transfer::timeout_ms. [any-thread]
  virtual uint64_t bytes_moved() const noexcept = 0;

 protected:
  ~WireProgress() = default;
};

}  // namespace engine
