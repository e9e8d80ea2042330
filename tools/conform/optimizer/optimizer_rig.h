// An optimizer with one parameter and its states.
#pragma once

#include <utility>
#include <vector>

#include "tools/conform/contract.h"
#include "tools/conform/plugin_under_test.h"

namespace engine::conform {

struct UpdateFactors {
  float gradient_scale = 1;
  float learning_rate = 0.01f;
  float weight_decay_scale = 1;
};

// The memory of one parameter.
class OptimizerRig {
 public:
  OptimizerRig(Optimizer& optimizer, std::vector<float> value)
      : optimizer_(optimizer), value_(std::move(value)) {
    states_.resize(static_cast<size_t>(optimizer.traits().state_count));
    for (std::vector<float>& state : states_) state.assign(value_.size(), 0);
  }

  // The memory of `other`, updated by another object.
  OptimizerRig(Optimizer& optimizer, const OptimizerRig& other)
      : optimizer_(optimizer), value_(other.value_), states_(other.states_) {}

  // One step over the elements [begin, end).
  UpdateCall Call(const std::vector<float>& gradient, uint64_t step, const UpdateFactors& factors,
                  size_t begin, size_t end) {
    UpdateCall call{.value = value_.data() + begin,
                    .gradient = gradient.data() + begin,
                    .count = static_cast<int64_t>(end - begin),
                    .gradient_scale = factors.gradient_scale,
                    .learning_rate = factors.learning_rate,
                    .weight_decay_scale = factors.weight_decay_scale,
                    .step = step};
    for (size_t i = 0; i < states_.size(); ++i) call.states[i] = states_[i].data() + begin;
    return call;
  }
  Status Update(const std::vector<float>& gradient, uint64_t step, const UpdateFactors& factors,
                size_t begin, size_t end) {
    return optimizer_.Update(Call(gradient, step, factors, begin, end));
  }
  Status Update(const std::vector<float>& gradient, uint64_t step,
                const UpdateFactors& factors = {}) {
    return Update(gradient, step, factors, 0, value_.size());
  }

  const std::vector<float>& value() const { return value_; }
  const std::vector<std::vector<float>>& states() const { return states_; }

 private:
  Optimizer& optimizer_;
  std::vector<float> value_;
  std::vector<std::vector<float>> states_;
};

}  // namespace engine::conform
