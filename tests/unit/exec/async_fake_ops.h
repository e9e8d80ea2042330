// Small ops for training on accelerators: what they read there is what the others read elsewhere.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>

#include "engine/ext/wire_format.h"
#include "tests/support/async_accelerator.h"
#include "tests/unit/exec/fake_ops.h"

namespace engine::test {

// The loss of LossOp, that may write the gradient of its input over the input; counts how often.
class InPlaceLossOp final : public OpBase {
 public:
  explicit InPlaceLossOp(std::atomic<int>* count) : count_(count) {}
  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(plain_.Infer(inputs, signature));
    signature->gradient_in_place = 1;
    return {};
  }
  Status Forward(const OpCall& call) noexcept override {
    ENGINE_RETURN_IF_ERROR(plain_.Forward(call));
    if ((call.gradient_in_place & 1) == 0) return {};
    ++*count_;
    for (int64_t k = 0; k < call.inputs[0].count(); ++k) {
      call.inputs[0].f32()[k] = static_cast<float>(call.inputs[1].i32()[k] + 1);
    }
    return {};
  }
  Status Backward(const OpCall& call) noexcept override {
    if ((call.gradient_in_place & 1) == 0) return plain_.Backward(call);
    if (call.input_grads[0].data != call.inputs[0].data) {
      return Status::Error(StatusCode::kInternal, "the gradient has another place");
    }
    for (int64_t k = 0; k < call.inputs[0].count(); ++k) {
      call.inputs[0].f32()[k] *= call.output_grads[0].f32()[0];
    }
    return {};
  }

 private:
  std::atomic<int>* const count_;
  LossOp plain_;
};

// y = x minus the mean of all x of all ranks. Made for the device that it runs on, as it calls
// other ranks in the middle of its work.
class MeanOp final : public FakeOp {
 public:
  explicit MeanOp(bool on_device) : on_device_(on_device) {}
  void Declare(Array<const TensorSpec>, OpSignature* signature) noexcept override {
    constexpr int64_t kMostRanks = 8;
    signature->workspace_bytes = (2 + 2 * kMostRanks) * static_cast<int64_t>(sizeof(float));
    signature->differentiable_inputs = 1;
    signature->uses_replicas = 1;
  }
  Status Forward(const OpCall& call) noexcept override {
    const TensorView x = call.inputs[0], y = call.outputs[0];
    auto* const own = static_cast<float*>(call.workspace);  // sum and count
    float* const all = own + 2;
    ENGINE_RETURN_IF_ERROR(Do(call, [this, x, own] {
      float* const sums = At(own);
      sums[0] = 0;
      sums[1] = static_cast<float>(x.count());
      for (int64_t k = 0; k < x.count(); ++k) sums[0] += At(x.f32())[k];
    }));
    const int32_t ranks = call.replicas == nullptr ? 0 : call.replicas->size();
    if (ranks > 0) ENGINE_RETURN_IF_ERROR(call.replicas->Gather(own, 2, all, call.stream));
    return Do(call, [this, x, y, own, ranks] {
      float sum = 0, count = 0;
      for (int32_t r = ranks == 0 ? 0 : 1; r < ranks + 1; ++r) {
        sum += At(own)[2 * r];
        count += At(own)[2 * r + 1];
      }
      const float mean = sum / std::max(count, 1.0f);
      for (int64_t k = 0; k < x.count(); ++k) At(y.f32())[k] = At(x.f32())[k] - mean;
    });
  }
  // Of a mean that is taken for a constant.
  Status Backward(const OpCall& call) noexcept override {
    const TensorView dy = call.output_grads[0], dx = call.input_grads[0];
    return Do(call, [this, dy, dx] {
      if (dx.data == nullptr) return;
      for (int64_t k = 0; k < dy.count(); ++k) At(dx.f32())[k] = At(dy.f32())[k];
    });
  }

 private:
  float* At(float* address) const { return on_device_ ? OnDevice(address) : address; }
  Status Do(const OpCall& call, const std::function<void()>& work) const {
    if (on_device_) {
      return static_cast<AsyncStream*>(call.stream)->Queue([work]() -> Status {
        work();
        return {};
      });
    }
    work();
    return {};
  }
  const bool on_device_;
};

// Sends half of what it has and keeps the other half for the next step.
class HalfSender final : public WireHook {
 public:
  explicit HalfSender(bool on_device) : on_device_(on_device) {}
  WireTraits wire_traits() const noexcept override {
    return {.dtype = DType::kFloat32, .state_count = 1, .state_names = {{"mean_half"}}};
  }
  Status Pack(const WireCall& call) noexcept override {
    return Do(call, [](const float* gradient, float* wire, float* state, const float* scale) {
      *state = (*state + *gradient * *scale) / 2;
      *wire = *state / *scale;
    });
  }
  Status Unpack(const WireCall& call) noexcept override {
    return Do(call,
              [](float* gradient, const float* wire, float*, const float*) { *gradient = *wire; });
  }

 private:
  template <typename One>
  Status Do(const WireCall& call, const One& one) const {
    auto work = [call, one]() -> Status {
      for (int64_t i = 0; i < call.count; ++i) {
        one(OnDevice(call.gradient) + i, OnDevice(static_cast<float*>(call.wire)) + i,
            OnDevice(call.states[0]) + i, OnDevice(call.scale));
      }
      return {};
    };
    return on_device_ ? static_cast<AsyncStream*>(call.stream)->Queue(work) : work();
  }

  const bool on_device_;
};

}  // namespace engine::test
