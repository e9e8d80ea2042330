// A communicator of some ranks, seen by a plugin that calls them otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/status.h"

namespace engine::plugins {

struct Group {
  std::string name;            // "hier/inside@0,2", for messages
  std::vector<int32_t> ranks;  // of each, what the asking plugin calls it

  // A Status that leaves the group.
  Status Outside(const Status& status) const noexcept;
};

// Around `made`, which errors and aborts reach and leave with the numbers of the asking plugin.
std::unique_ptr<Communicator> AroundGroup(std::unique_ptr<Communicator> made, Group group);

}  // namespace engine::plugins
