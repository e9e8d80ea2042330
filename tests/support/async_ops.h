// Ops of host memory that run on an AsyncAccelerator: a call is kept and done later, with step and
// first sample as the device finds them then.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/op.h"
#include "tests/support/async_accelerator.h"

namespace engine::test {

class AsyncOp final : public OpBase {
 public:
  // Called on the thread of the stream before each call of the op. May be empty.
  using BeforeCall = std::function<void(bool backward)>;

  AsyncOp(AsyncAccelerator& device, std::unique_ptr<Op> op, BeforeCall before = {})
      : device_(device), op_(std::move(op)), before_(std::move(before)) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return op_->Infer(inputs, signature);
  }
  Status Forward(const OpCall& call) noexcept override { return Queue(call, false); }
  Status Backward(const OpCall& call) noexcept override { return Queue(call, true); }

 private:
  using Views = std::vector<TensorView>;

  // A call with its own lists.
  struct Kept {
    OpCall call;
    Views inputs, outputs, output_grads, input_grads;
    std::vector<const void*> written;

    explicit Kept(const OpCall& made) : call(made) {
      call.inputs = Keep(made.inputs, &inputs);
      call.outputs = Keep(made.outputs, &outputs);
      call.output_grads = Keep(made.output_grads, &output_grads);
      call.input_grads = Keep(made.input_grads, &input_grads);
      call.saved = OnDevice(made.saved);
      call.workspace = OnDevice(made.workspace);
      call.scalars = nullptr;
      call.stream = nullptr;
    }
    static Array<const TensorView> Keep(Array<const TensorView> views, Views* kept) {
      kept->assign(views.begin(), views.end());
      for (TensorView& view : *kept) view.data = OnDevice(view.data);
      return *kept;
    }
  };

  Status Queue(const OpCall& call, bool backward) {
    if (call.replicas != nullptr || call.scalars == nullptr) {
      return Status::Error(StatusCode::kUnsupported, "a call that cannot be done later");
    }
    auto kept = std::make_shared<Kept>(call);
    for (const TensorView& view : backward ? kept->input_grads : kept->outputs) {
      if (view.data != nullptr) kept->written.push_back(view.data);
    }
    device_.AddWriters(kept->written);
    const StepScalars* const scalars = OnDevice(call.scalars);
    return static_cast<AsyncStream*>(call.stream)->Queue([this, kept, scalars, backward] {
      if (before_) before_(backward);
      kept->call.step = scalars->step;
      kept->call.first_sample = scalars->first_sample;
      Status status = backward ? op_->Backward(kept->call) : op_->Forward(kept->call);
      device_.RemoveWriters(kept->written);
      return status;
    });
  }

  AsyncAccelerator& device_;
  const std::unique_ptr<Op> op_;
  const BeforeCall before_;
};

// Another library's ops on `device`.
class AsyncOpLibrary final : public OpLibraryBase {
 public:
  AsyncOpLibrary(AsyncAccelerator& device, std::unique_ptr<OpLibrary> library)
      : device_(device), library_(std::move(library)) {}

  Device* device() noexcept override { return &device_; }
  Status CreateOp(std::string_view name, const Options& attributes, Op** out) noexcept override {
    Op* op = nullptr;
    ENGINE_RETURN_IF_ERROR(library_->CreateOp(name, attributes, &op));
    *out = new AsyncOp(device_, std::unique_ptr<Op>(op));
    return {};
  }

 private:
  AsyncAccelerator& device_;
  const std::unique_ptr<OpLibrary> library_;
};

}  // namespace engine::test
