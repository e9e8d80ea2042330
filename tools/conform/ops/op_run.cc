#include "tools/conform/ops/op_run.h"

#include <algorithm>
#include <deque>
#include <span>
#include <utility>

#include "engine/ext/accelerator.h"
#include "tools/conform/allocation_count.h"
#include "tools/conform/ops/elements.h"
#include "tools/conform/plugin_under_test.h"

namespace engine::conform {
namespace {

constexpr uint32_t kForward = 1, kBackward = 2;  // passes, and which of them may write a buffer

const char* NameOf(uint32_t pass) {
  return pass == kForward ? "Forward" : "Backward";
}

std::vector<std::byte> Encode(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.values.size() * SizeOf(tensor.spec.dtype));
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    WriteElement(tensor.spec.dtype, bytes.data(), i, tensor.values[i]);
  }
  return bytes;
}

std::vector<float> Decode(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(ReadElement(dtype, bytes.data(), i));
  }
  return values;
}

// Null for a device whose work is done when the call returns.
Accelerator* AcceleratorOf(Device* device) {
  return Query<Accelerator>(*device);
}

std::unique_ptr<Stream> NewStream(Device* device) {
  Stream* stream = nullptr;
  Must(device->CreateStream(&stream));
  return std::unique_ptr<Stream>(stream);
}

// The replicas of an op on any device, over others that work on host memory.
class StagedReplicas final : public ReplicasBase {
 public:
  StagedReplicas(Replicas* on_host, Device* device) : on_host_(on_host), device_(device) {}

  int32_t size() const noexcept override { return on_host_->size(); }
  int32_t rank() const noexcept override { return on_host_->rank(); }
  Status Gather(const float* own, int64_t count, float* all, Stream* stream) noexcept override {
    const auto part = static_cast<size_t>(count), whole = part * static_cast<size_t>(size());
    std::vector<float> host_own(part), host_all(whole);
    ENGINE_RETURN_IF_ERROR(device_->Copy(host_own.data(), own, part * sizeof(float), stream));
    ENGINE_RETURN_IF_ERROR(stream->Synchronize(kDeviceTimeoutMs));
    ENGINE_RETURN_IF_ERROR(on_host_->Gather(host_own.data(), count, host_all.data(), nullptr));
    ENGINE_RETURN_IF_ERROR(device_->Copy(all, host_all.data(), whole * sizeof(float), stream));
    return stream->Synchronize(kDeviceTimeoutMs);
  }

 private:
  Replicas* const on_host_;
  Device* const device_;
};

}  // namespace

// All memory of one call.
class OpRun::Memory {
 public:
  Memory(Device* device, const MadeOp& op, const Problem& problem, const RunOptions& options)
      : device_(device),
        op_(op),
        options_(options),
        stream_(NewStream(device)),
        replicas_(options.replicas, device) {
    AddInputs(problem);
    for (const Tensor& gradient : problem.output_gradients) AddOutput(gradient);
    for (size_t i = 0; i < problem.inputs.size(); ++i) AddGradient(i, problem.inputs[i]);
    if (AcceleratorOf(device) != nullptr) AddScalars();
    const OpSignature& signature = op.signature;
    saved_ =
        Add("the saved bytes", static_cast<size_t>(signature.saved_bytes), kForward | kBackward);
    workspace_ =
        Add("the workspace", static_cast<size_t>(signature.workspace_bytes), kForward | kBackward);
  }

  // Gradients are those of Backward: Forward sees none.
  OpCall Call(uint32_t pass) {
    Array<const TensorView> none;
    return {.inputs = inputs_,
            .outputs = outputs_,
            .output_grads = pass == kBackward ? output_gradients_ : none,
            .input_grads = pass == kBackward ? input_gradients_ : none,
            .accumulate = options_.accumulate,
            .training = options_.training ? 1u : 0u,
            .gradient_in_place = gradient_in_place_,
            .saved = saved_->memory.data(),
            .workspace = workspace_->memory.data(),
            .stream = stream_.get(),
            .seed = options_.random.seed,
            .step = scalars_ == nullptr ? options_.random.step : 0,
            .node = options_.random.node,
            .first_sample = scalars_ == nullptr ? options_.random.first_sample : 0,
            .replicas = options_.replicas == nullptr ? nullptr : &replicas_,
            .scalars = scalars_};
  }

  // Between Forward and Backward: scratch is lost, and what Backward does not read may be.
  void AfterForward() {
    Poison(workspace_);
    if (!options_.hide_undeclared) return;
    const OpSignature& signature = op_.signature;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const bool is_gradient = (gradient_in_place_ >> i & 1) != 0;  // what Forward has left there
      if (!(signature.backward_reads_inputs >> i & 1) && !is_gradient) Poison(Find(inputs_[i]));
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (!(signature.backward_reads_outputs >> i & 1)) Poison(Find(outputs_[i]));
    }
  }

  // Looks at all memory after a pass.
  void Look(uint32_t pass, RunResult* result) {
    for (Buffer& buffer : buffers_) buffer.memory.Fetch();
    Must(stream_->Synchronize(kDeviceTimeoutMs));
    for (Buffer& buffer : buffers_) {
      if (!buffer.memory.guards_intact()) {
        result->overruns.push_back(NameOf(pass) + std::string(" wrote beside ") + buffer.name);
      }
      const auto now = buffer.memory.content();
      if ((buffer.writers & pass) == 0 && !std::ranges::equal(now, buffer.known)) {
        result->changes.push_back(NameOf(pass) + std::string(" changed ") + buffer.name);
      }
      buffer.known.assign(now.begin(), now.end());
    }
  }

  void TakeForward(RunResult* result) {
    for (const TensorView& output : outputs_) result->outputs.push_back(Content(output));
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!batched_[i]) result->parameters.push_back(Content(inputs_[i]));
    }
  }
  void TakeBackward(RunResult* result) {
    for (const TensorView& gradient : input_gradients_) {
      result->gradients.push_back(gradient.data == nullptr ? std::vector<float>()
                                                           : Content(gradient));
    }
  }

  // What a device that works on its own found wrong with the data.
  Status Fault() const {
    Accelerator* const accelerator = AcceleratorOf(device_);
    return accelerator == nullptr ? Status() : accelerator->Fault();
  }
  Stream* stream() const { return stream_.get(); }

 private:
  struct Buffer {
    Buffer(Memory* all, std::string its_name, size_t size_bytes, uint32_t passes)
        : memory(all->device_, all->stream_.get(), size_bytes, all->options_.poison),
          name(std::move(its_name)),
          writers(passes),
          known(size_bytes, all->options_.poison) {}

    DeviceMemory memory;
    const std::string name;
    uint32_t writers;              // passes
    std::vector<std::byte> known;  // content
  };

  Buffer* Add(const std::string& name, size_t size_bytes, uint32_t writers) {
    return &buffers_.emplace_back(this, name, size_bytes, writers);
  }

  void Write(Buffer* buffer, std::vector<std::byte> content) {
    buffer->memory.Write(content);
    buffer->known = std::move(content);
  }
  void Poison(Buffer* buffer) {
    Write(buffer, std::vector(buffer->memory.size_bytes(), options_.poison));
  }

  Buffer* Find(const TensorView& view) {
    const auto is_at = [&](const Buffer& buffer) { return buffer.memory.data() == view.data; };
    return &*std::ranges::find_if(buffers_, is_at);
  }

  std::vector<float> Content(const TensorView& view) {
    return Decode(Find(view)->memory.content().first(view.size_bytes()), view.dtype);
  }

  TensorView View(const std::string& name, const Tensor& tensor, bool write, uint32_t writers) {
    std::vector<std::byte> bytes = Encode(tensor);
    Buffer* const buffer = Add(name, bytes.size(), writers);
    if (write) Write(buffer, std::move(bytes));
    return {buffer->memory.data(), tensor.shape(), tensor.spec.dtype};
  }

  void AddInputs(const Problem& problem) {
    for (size_t i = 0; i < problem.inputs.size(); ++i) {
      const Tensor& input = problem.inputs[i];
      const uint32_t writers = op_.is_buffer(i) && options_.training ? kForward : 0;
      inputs_.push_back(View("input " + std::to_string(i), input, true, writers));
      batched_.push_back(input.spec.batched != 0);
    }
  }

  // What such a device reads instead of the values in the call.
  void AddScalars() {
    const StepScalars scalars{.step = options_.random.step,
                              .first_sample = options_.random.first_sample};
    Buffer* const buffer = Add("the scalars of the step", sizeof scalars, 0);
    const auto bytes = std::as_bytes(std::span(&scalars, 1));
    Write(buffer, {bytes.begin(), bytes.end()});
    scalars_ = static_cast<const StepScalars*>(buffer->memory.data());
  }

  // The next output and its gradient. In the memory of an input where it may or must be.
  void AddOutput(const Tensor& gradient) {
    const std::string name = "output " + std::to_string(outputs_.size());
    const OpSignature& signature = op_.signature;
    int32_t alias = outputs_.empty() ? signature.output_is_view_of : -1;
    if (outputs_.empty() && alias < 0 && (options_.in_place || op_.always_in_place)) {
      alias = signature.in_place_of;
      if (alias >= 0) Find(inputs_[static_cast<size_t>(alias)])->writers |= kForward;
    }
    TensorView output = {nullptr, gradient.shape(), gradient.spec.dtype};
    if (alias >= 0) {
      output.data = inputs_[static_cast<size_t>(alias)].data;
    } else {
      output = View(name, gradient, false, kForward);
    }
    const bool missing = (options_.missing >> outputs_.size() & 1) != 0;
    outputs_.push_back(output);
    output_gradients_.push_back(View("the gradient of " + name, gradient, true, 0));
    if (missing) output_gradients_.back().data = nullptr;
  }

  // The input whose gradient may be in the memory of that of input `i`, or null.
  void* EqualGradient(size_t i) const {
    const uint32_t equal = op_.signature.equal_gradients & ~options_.accumulate;
    for (size_t j = 0; j < i && (equal >> i & 1) != 0; ++j) {
      if ((equal >> j & 1) != 0 && input_gradients_[j].data) return input_gradients_[j].data;
    }
    return nullptr;
  }

  void AddGradient(size_t i, const Tensor& input) {
    const bool is_parameter = i >= op_.data_inputs || (op_.parameters >> i & 1u) != 0;
    TensorView view{nullptr, input.shape(), is_parameter ? DType::kFloat32 : input.spec.dtype};
    if (op_.differentiable(i) && (options_.wanted >> i & 1) != 0) {
      const OpSignature& signature = op_.signature;
      if (options_.share_gradient && (signature.passes_gradient >> i & 1)) {
        view.data = output_gradients_[0].data;
      } else if (options_.share_gradient && EqualGradient(i) != nullptr) {
        view.data = EqualGradient(i);
      } else if (options_.gradient_in_place && (signature.gradient_in_place >> i & 1)) {
        view.data = inputs_[i].data;
        Find(view)->writers |= kForward | kBackward;
        gradient_in_place_ |= 1u << i;
      } else {
        Tensor before = input;
        before.spec.dtype = view.dtype;
        for (size_t j = 0; j < before.values.size(); ++j) before.values[j] = Before(j);
        const bool adds = (options_.accumulate >> i & 1) != 0;
        view = View("the gradient of input " + std::to_string(i), before, adds, kBackward);
      }
    }
    input_gradients_.push_back(view);
  }

  Device* const device_;
  const MadeOp& op_;
  const RunOptions& options_;
  const std::unique_ptr<Stream> stream_;
  std::deque<Buffer> buffers_;  // a deque does not move its elements
  std::vector<TensorView> inputs_, outputs_, output_gradients_, input_gradients_;
  std::vector<bool> batched_;  // of each input
  Buffer* saved_ = nullptr;
  Buffer* workspace_ = nullptr;
  const StepScalars* scalars_ = nullptr;
  uint32_t gradient_in_place_ = 0;
  StagedReplicas replicas_;
};

OpRun::OpRun(Device* device, MadeOp& op, const Problem& problem, const RunOptions& options)
    : op_(op),
      options_(options),
      memory_(std::make_unique<Memory>(device, op_, problem, options_)) {}
OpRun::~OpRun() = default;

void OpRun::Watch(uint32_t pass) {
  const OpCall call = memory_->Call(pass);
  {
    const AllocationCounter allocations;
    result_.status = pass == kForward ? op_.op->Forward(call) : op_.op->Backward(call);
    result_.allocated_bytes += allocations.bytes();
  }
  if (result_.status.ok()) result_.status = memory_->stream()->Synchronize(kDeviceTimeoutMs);
  if (result_.status.ok()) result_.status = memory_->Fault();
  if (result_.status.ok()) return memory_->Look(pass, &result_);
  result_.status = result_.status.WithContext("%s", NameOf(pass));
}

void OpRun::Forward() {
  Watch(kForward);
  if (result_.status.ok()) memory_->TakeForward(&result_);
}

void OpRun::Backward() {
  if (!result_.status.ok()) return;
  memory_->AfterForward();
  Watch(kBackward);
  if (result_.status.ok()) memory_->TakeBackward(&result_);
}

RunResult RunOp(Device* device, MadeOp& op, const Problem& problem, const RunOptions& options) {
  OpRun run(device, op, problem, options);
  run.Forward();
  if (options.training && options.backward) run.Backward();
  return std::move(run.result());
}

TensorSpec WithSamples(TensorSpec spec, int64_t full, int64_t samples) {
  if (spec.batched != 0) spec.shape[0] = spec.shape[0] / full * samples;
  return spec;
}

Values Problem::AllGradients() const {
  Values all;
  for (const Tensor& gradient : output_gradients) {
    all.insert(all.end(), gradient.values.begin(), gradient.values.end());
  }
  return all;
}

std::vector<float> RunResult::AllOutputs() const {
  std::vector<float> all;
  for (const std::vector<float>& output : outputs) {
    all.insert(all.end(), output.begin(), output.end());
  }
  return all;
}

Problem PartOf(const Problem& problem, int64_t begin, int64_t end) {
  const auto cut = [&](Tensor tensor) {
    if (tensor.spec.batched == 0 || problem.samples == 0) return tensor;
    const int64_t size = tensor.shape().Count() / problem.samples;
    tensor.spec = WithSamples(tensor.spec, problem.samples, end - begin);
    tensor.values =
        Values(tensor.values.begin() + begin * size, tensor.values.begin() + end * size);
    return tensor;
  };
  Problem part{.samples = end - begin};
  for (const Tensor& input : problem.inputs) part.inputs.push_back(cut(input));
  for (const Tensor& gradient : problem.output_gradients) {
    part.output_gradients.push_back(cut(gradient));
  }
  return part;
}

}  // namespace engine::conform
