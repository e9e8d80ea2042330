// Ops that see all ranks while they run, have a buffer, and say what they were told.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "tests/unit/exec/fake_ops.h"

namespace engine::test {

// y = x minus the mean of x over the samples of all ranks (of this rank, if not `sync`), per
// element of a sample. Its buffer "mean" goes half the way to that mean in each step; evaluation
// takes it instead.
class CenterOp final : public FakeOp {
 public:
  explicit CenterOp(bool sync) : sync_(sync) {}

  void Declare(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    AddParameter(inputs, {.name = "mean", .decay = 0, .trained = 0}, signature);
    signature->differentiable_inputs = 1;
    signature->uses_replicas = sync_ ? 1 : 0;
  }
  Status Forward(const OpCall& call) noexcept override {
    forward_calls.push_back(call);
    float* const running = call.inputs[1].f32();
    const int64_t width = call.inputs[1].count();
    if (call.training != 0) {
      ENGINE_RETURN_IF_ERROR(Mean(call, call.inputs[0]));
      for (int64_t k = 0; k < width; ++k) running[k] = (running[k] + mean_[Index(k)]) / 2;
    } else {
      mean_.assign(running, running + width);
    }
    for (int64_t k = 0; k < call.inputs[0].count(); ++k) {
      call.outputs[0].f32()[k] = call.inputs[0].f32()[k] - mean_[Index(k % width)];
    }
    return {};
  }
  Status Backward(const OpCall& call) noexcept override {
    ENGINE_RETURN_IF_ERROR(Mean(call, call.output_grads[0]));
    const int64_t width = call.inputs[1].count();
    for (int64_t k = 0; k < call.output_grads[0].count(); ++k) {
      Put(call, 0, k, call.output_grads[0].f32()[k] - mean_[Index(k % width)]);
    }
    return {};
  }

  std::vector<OpCall> forward_calls;

 private:
  static size_t Index(int64_t i) { return static_cast<size_t>(i); }

  Status Mean(const OpCall& call, const TensorView& x) {
    const int64_t width = call.inputs[1].count();
    const int64_t rows = x.count() / width;
    std::vector<float> own(Index(width + 1));
    for (int64_t k = 0; k < rows * width; ++k) own[Index(k % width)] += x.f32()[k];
    own.back() = static_cast<float>(rows);
    all_ = own;
    int64_t ranks = 1;
    if (call.replicas != nullptr) {
      ranks = call.replicas->size();
      all_.resize(Index(ranks * (width + 1)));
      ENGINE_RETURN_IF_ERROR(
          call.replicas->Gather(own.data(), width + 1, all_.data(), call.stream));
    }
    mean_.assign(Index(width + 1), 0);
    for (size_t i = 0; i < all_.size(); ++i) mean_[i % mean_.size()] += all_[i];
    for (float& value : mean_) value /= std::max(mean_.back(), 1.0f);
    return {};
  }

  const bool sync_;
  std::vector<float> all_, mean_;
};

// The ops "center" and "center_alone", and those of FakeOps.
inline plugin::OpFactory ReplicaOps() {
  return [](const std::string& name,
            const std::vector<plugin::OwnedOption>& attributes) -> Result<std::unique_ptr<Op>> {
    if (name == "center") return std::unique_ptr<Op>(new CenterOp(true));
    if (name == "center_alone") return std::unique_ptr<Op>(new CenterOp(false));
    return FakeOps()(name, attributes);
  };
}

inline CenterOp& CenterNamed(const graph::Graph& graph, const std::string& name) {
  for (const graph::Node& node : graph.nodes) {
    if (node.name == name) return static_cast<CenterOp&>(*node.op);
  }
  std::abort();
}

}  // namespace engine::test
