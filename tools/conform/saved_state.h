// What an object keeps in checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/abi/interface.h"
#include "engine/ext/saved_state.h"

namespace engine::conform {

// Null when it keeps nothing.
inline SavedState* SavedStateOf(Object& object) {
  return Query<SavedState>(object);
}

using StateBytes = std::vector<uint8_t>;
StateBytes Save(SavedState& state);

// As a checkpoint does; of objects that keep nothing nothing.
void CarryState(Object& from, Object& to);

// An object of the library under test that has worked for `steps` steps, and whatever it needs to
// live.
std::shared_ptr<Object> Worked(uint32_t steps);

}  // namespace engine::conform
