// How a parameter changes, given its gradient.
#pragma once

#include <cstdint>

#include "engine/device.h"
#include "engine/object.h"
#include "engine/options.h"
#include "engine/status.h"

namespace engine {

// What must be known before an element may be updated.
enum class UpdateGate : int32_t {
  kSpan = 0,    // its own gradient: any slice of a parameter can be updated alone
  kTensor = 1,  // the gradient of its whole parameter
  kGlobal = 2,  // all gradients
};

constexpr int32_t kMaxOptimizerStates = 4;

struct OptimizerTraits {
  UpdateGate gate = UpdateGate::kSpan;
  int32_t state_count = 0;  // float32 tensors of the parameter's shape, zero at the start
  FixedString<32> state_names[kMaxOptimizerStates];
  uint32_t state_format_version = 1;  // of their meaning, kept in checkpoints
};

// One span of one parameter: `count` elements of each array.
struct UpdateCall {
  float* value = nullptr;
  const float* gradient = nullptr;
  float* states[kMaxOptimizerStates] = {};
  int64_t count = 0;
  float gradient_scale = 1;  // the gradient is gradient[i] * gradient_scale
  float learning_rate = 0;   // of this step, from the trainer's schedule
  float weight_decay_scale =
      1;  // multiplies the optimizer's own weight decay: 0 for biases and norms
  uint32_t reserved = 0;
  uint64_t step = 1;  // 1 at the first update
  Stream* stream = nullptr;
};

class Optimizer : public Object {
 public:
  virtual OptimizerTraits traits() const noexcept = 0;  // [setup]
  // Two calls for disjoint spans may run at the same time. [any-thread]
  virtual Status Update(const UpdateCall& call) noexcept = 0;
};

}  // namespace engine
