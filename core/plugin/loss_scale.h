// A loss scale that follows from the gradients of the steps before.
#pragma once

#include <cstdint>

#include "engine/device.h"

namespace engine::plugin {

// Query<LossScale> of a hook of the engine's own, which is global and comes before all others that
// work on reduced gradients. It says whether a step counts: one that does not has no updates, and
// no hook behind this one sees its gradients. All of it is the same on all ranks. [compute-lane]
ENGINE_INTERFACE(LossScale, Interface, "engine.loss_scale", scale, skipped, Decide);
class LossScaleBase : public Implements<LossScale> {
 public:
  // Of the next backward pass.
  virtual float scale() const noexcept = 0;
  // Steps that did not count, from the beginning of the training.
  virtual uint64_t skipped() const noexcept = 0;
  // When all gradients of a step were observed, and what ranks have seen is summed up. Of several
  // calls in a step only the first one does something. `stream`: behind the observations, of an
  // accelerator, for which it waits.
  virtual Status Decide(Stream* stream) noexcept = 0;

 protected:
  ~LossScaleBase() = default;
};

}  // namespace engine::plugin
