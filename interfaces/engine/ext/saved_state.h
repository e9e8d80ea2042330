// What a hook, a scheduler or a communicator remembers from step to step, kept in checkpoints.
// (States of optimizers and wire formats are tensors: OptimizerTraits, WireTraits.)
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/status.h"

namespace engine {

// Query<SavedState> of a GradientHook, Scheduler or Communicator gives one or null, the same on all
// ranks. It lives as long as the object. A Communicator means the one of the run, not those that
// were split from it; servers have none. All of it is called on the thread of the rank.
ENGINE_INTERFACE(SavedState, Interface, "engine.saved_state.draft/1", state_version, SaveState,
                 LoadState);
class SavedStateBase : public Implements<SavedState> {
 public:
  // Of the meaning of the bytes; a run that goes on gets them only with the version that they were
  // saved with, and is refused with a sentence otherwise. [any-thread]
  virtual uint32_t state_version() const noexcept = 0;

  // Calls sink(context, data, size) once, before it returns, with what shall be kept of this rank,
  // which may be nothing; `data` is copied. Between two steps or after the last one, as often as
  // the run keeps checkpoints: all updates are done, no transfer is under way, and no call of the
  // object. Of a hook, where a run survives the loss of a rank, also before BeginStep of each step,
  // which has not called it yet. What the run does afterwards must not depend on whether it was
  // called. An error ends the run, and the checkpoint is not written. [compute-lane]
  virtual Status SaveState(void (*sink)(void* context, const uint8_t* data, uint64_t size),
                           void* context) noexcept = 0;

  // LoadState gets what SaveState gave; what is saved then is the same again. It is called before
  // the first step and the first transfer of a run that goes on, after Setup or Begin, with what
  // was saved on the same rank. Or on rank 0, on every rank: where the run had another number of
  // ranks, or ranks that do not wait for each other (asynchronous servers), of which rank 0 alone
  // keeps a checkpoint. Not called when the checkpoint has none, nor on a rank in the place of one
  // that was lost. `state` is valid during the call. kBadData for bytes that no SaveState makes.
  // [setup]
  virtual Status LoadState(std::span<const uint8_t> state) noexcept = 0;

 protected:
  ~SavedStateBase() = default;
};

}  // namespace engine
