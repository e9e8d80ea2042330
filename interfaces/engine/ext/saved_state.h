// What a hook, a scheduler or a communicator remembers from step to step, kept in checkpoints.
// (States of optimizers and wire formats are tensors: OptimizerTraits, WireTraits.)
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/status.h"

namespace engine {

constexpr std::string_view kSavedStateId = "engine.saved_state/1";

// Object::Query(kSavedStateId) of a GradientHook, Scheduler or Communicator gives one or null, the
// same on all ranks. It lives as long as the object.
class SavedState {
 public:
  // Of the meaning of the bytes; a run that goes on gets them only with the version that they were
  // saved with, and is refused with a sentence otherwise. [setup]
  virtual uint32_t state_version() const noexcept = 0;

  // Calls sink(context, data, size) once with what shall be kept of this rank, which may be nothing.
  // Between two steps: no transfer is under way, and no call of the object. [setup]
  virtual Status SaveState(void (*sink)(void* context, const uint8_t* data, uint64_t size),
                           void* context) noexcept = 0;

  // Before the first step of a run that goes on, after Setup or Begin: what SaveState gave on the
  // same rank, or on rank 0 where the run had another number of ranks. Not called when the
  // checkpoint has none. What is saved then is the same again. kBadData for bytes that no SaveState
  // makes. [setup]
  virtual Status LoadState(std::span<const uint8_t> state) noexcept = 0;

 protected:
  ~SavedState() = default;
};

}  // namespace engine
