// How a parameter changes, given its gradient.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/device.h"
#include "engine/options.h"
#include "engine/status.h"

namespace engine {

// What must be known before an element may be updated. kSpan: any slice of a parameter can be
// updated alone, with the same bits; calls for disjoint spans may run at the same time.
enum class UpdateGate : int32_t {
  kSpan = 0,    // its own gradient
  kTensor = 1,  // the gradient of its whole parameter
  kGlobal = 2,  // all gradients
};

constexpr int32_t kMaxOptimizerStates = 4;

// 0 to kMaxOptimizerStates states; of their names no two are equal and none is empty; their format
// version is at least 1. The core allocates states, cuts them as it cuts the parameters, and keeps
// them in checkpoints under these names.
struct OptimizerTraits {
  uint64_t struct_size = sizeof(OptimizerTraits);
  UpdateGate gate = UpdateGate::kSpan;
  int32_t state_count = 0;  // float32 tensors of the parameter's shape, zero at the start
  FixedString<32> state_names[kMaxOptimizerStates] = {};
  // Of their meaning. A run that goes on refuses a checkpoint with another one.
  uint32_t state_format_version = 1;
};
ENGINE_LAYOUT(OptimizerTraits, struct_size, gate, state_count, state_names, state_format_version);

// One span of one parameter: `count` elements of each array. Arrays may be null where count is 0.
// What they point to is the caller's, and the optimizer's during the call only.
struct UpdateCall {
  uint64_t struct_size = sizeof(UpdateCall);
  float* value = nullptr;
  const float* gradient = nullptr;
  float* states[kMaxOptimizerStates] = {};
  int64_t count = 0;
  float gradient_scale = 1;  // the gradient is gradient[i] * gradient_scale
  float learning_rate = 0;   // of this step, from the trainer's schedule
  float weight_decay_scale =
      1;  // multiplies the optimizer's own weight decay: 0 for biases and norms
  float learning_rate_scale = 1;  // the factor of this parameter that is in learning_rate
  uint64_t step = 1;              // 1 at the first update
  Stream* stream = nullptr;

  // Of an Accelerator, where the arrays above are device memory; else null. The scale is a number
  // in device memory, gradient_scale is 1; scalars say learning rate and step.
  const float* device_scale = nullptr;
  const StepScalars* scalars = nullptr;
  void* value_bf16 = nullptr;  // null, or `count` elements that also get the new value, rounded
};
ENGINE_LAYOUT(UpdateCall, struct_size, value, gradient, states, count, gradient_scale,
              learning_rate, weight_decay_scale, learning_rate_scale, step, stream, device_scale,
              scalars, value_bf16);

// Query<SpanUpdates> of an Optimizer gives one or null: for optimizers that gain from seeing many
// spans at once.
ENGINE_INTERFACE(SpanUpdates, Interface, "engine.span_updates.draft/1", Update);
class SpanUpdatesBase : public Implements<SpanUpdates> {
 public:
  // The spans are disjoint. Updates many of them, the same as one Update after the other.
  // [any-thread]
  virtual Status Update(Array<const UpdateCall> calls) noexcept = 0;

 protected:
  ~SpanUpdatesBase() = default;
};

// What an update leaves is in value and states alone: a run that goes on from a checkpoint has
// another object. The first update should move a value against its gradient. Where the gradient
// has always been 0, and weight_decay_scale is 0, no value should change.
ENGINE_INTERFACE(Optimizer, Object, "engine.optimizer.draft/1", traits, Update);
class OptimizerBase : public Implements<Optimizer> {
 public:
  virtual OptimizerTraits traits() const noexcept = 0;  // the same every time [setup]
  // An update writes `count` elements of value and of each state, and nothing else. [any-thread]
  virtual Status Update(const UpdateCall& call) noexcept = 0;
};

}  // namespace engine
