#include "tools/conform/ops/op_run.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <ranges>
#include <span>
#include <utility>

#include "engine/ext/accelerator.h"
#include "tools/conform/allocation_count.h"
#include "tools/conform/ops/elements.h"
#include "tools/conform/plugin_under_test.h"

namespace engine::conform {
namespace {

constexpr uint32_t kForward = 1, kBackward = 2, kBoth = 3;  // passes: which may write a block

void Encode(const Tensor& tensor, std::byte* to) {
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    WriteElement(tensor.spec.dtype, to, i, tensor.values[i]);
  }
}

std::unique_ptr<Stream> NewStream(Device* device) {
  Stream* stream = nullptr;
  Must(device->CreateStream(&stream));
  return std::unique_ptr<Stream>(stream);
}

// Of all memory of a call.
size_t SizeOf(const Problem& problem, const OpSignature& signature) {
  size_t size_bytes = DeviceMemory::Taken(static_cast<size_t>(signature.saved_bytes)) +
                      DeviceMemory::Taken(static_cast<size_t>(signature.workspace_bytes)) +
                      DeviceMemory::Taken(sizeof(StepScalars));
  for (const auto* tensors : {&problem.inputs, &problem.output_gradients}) {
    for (const Tensor& tensor : *tensors) {  // and its gradient, or value
      size_bytes += 2 * DeviceMemory::Taken(tensor.values.size() * sizeof(float));
    }
  }
  return size_bytes;
}

}  // namespace

// What a call is made of.
class OpRun::State {
 public:
  RunResult result;

  State(Device* device, MadeOp& op, const Problem& problem, const RunOptions& options)
      : accelerator_(Query<Accelerator>(*device)),
        op_(op),
        options_(options),
        stream_(NewStream(device)),
        memory_(device, stream_.get(), SizeOf(problem, op.signature)) {
    for (const Tensor& input : problem.inputs) AddInput(input);
    for (const Tensor& gradient : problem.output_gradients) AddOutput(gradient);
    for (size_t i = 0; i < problem.inputs.size(); ++i) AddGradient(i, problem.inputs[i]);
    if (accelerator_ != nullptr) AddScalars();
    const OpSignature& signature = op.signature;
    saved_ = Add("the saved bytes", static_cast<size_t>(signature.saved_bytes), kBoth);
    workspace_ = Add("the workspace", static_cast<size_t>(signature.workspace_bytes), kBoth);
  }

  void Forward() {
    if (!Run(kForward)) return;
    for (const TensorView& output : outputs_) result.outputs.push_back(Content(output));
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!batched_[i]) result.parameters.push_back(Content(inputs_[i]));
    }
  }

  void Backward() {
    if (!result.status.ok()) return;
    Poison(workspace_);
    if (options_.hide_undeclared) HideUndeclared();
    if (!Run(kBackward)) return;
    for (const TensorView& gradient : input_gradients_) {
      const bool any = gradient.data != nullptr;
      result.gradients.push_back(any ? Content(gradient) : std::vector<float>());
    }
  }

 private:
  struct Block {
    std::string name;
    uint32_t writers;  // passes
    std::span<std::byte> content;
  };

  // A device that works on its own reads the scalars instead of the values. Gradients are those of
  // Backward: Forward sees none.
  OpCall Call(uint32_t pass) {
    const Array<const TensorView> none;
    return {.inputs = inputs_,
            .outputs = outputs_,
            .output_grads = pass == kBackward ? output_gradients_ : none,
            .input_grads = pass == kBackward ? input_gradients_ : none,
            .accumulate = options_.accumulate,
            .training = options_.training ? 1u : 0u,
            .gradient_in_place = gradient_in_place_,
            .saved = memory_.OnDevice(saved_),
            .workspace = memory_.OnDevice(workspace_),
            .stream = stream_.get(),
            .seed = options_.random.seed,
            .step = scalars_ == nullptr ? options_.random.step : 0,
            .node = options_.random.node,
            .first_sample = scalars_ == nullptr ? options_.random.first_sample : 0,
            .replicas = options_.replicas,
            .scalars = scalars_};
  }

  // One pass, and what it did to memory. False after an error.
  bool Run(uint32_t pass) {
    const std::string name = pass == kForward ? "Forward" : "Backward";
    const OpCall call = Call(pass);
    memory_.Write();
    {
      const AllocationCounter allocations;
      result.status = pass == kForward ? op_.op->Forward(call) : op_.op->Backward(call);
      result.allocated_bytes += allocations.bytes();
    }
    if (result.status.ok()) result.status = stream_->Synchronize(kDeviceTimeoutMs);
    if (result.status.ok() && accelerator_ != nullptr) result.status = accelerator_->Fault();
    if (!result.status.ok()) {
      result.status = result.status.WithContext("%s", name.c_str());
      return false;
    }
    memory_.Fetch();
    for (const Block& block : blocks_) {
      if (memory_.ChangedBeside(block.content)) {
        result.overruns.push_back(name + " wrote beside " + block.name);
      }
      if ((block.writers & pass) == 0 && memory_.Changed(block.content)) {
        result.changes.push_back(name + " changed " + block.name);
      }
    }
    return true;
  }

  void HideUndeclared() {
    const auto hide = [&](const std::vector<TensorView>& views, uint32_t read) {
      for (size_t i = 0; i < views.size(); ++i) {
        if ((read >> i & 1) == 0) Poison(Find(views[i]).content);
      }
    };
    // What Forward has left in a gradient's place is read.
    hide(inputs_, op_.signature.backward_reads_inputs | gradient_in_place_);
    hide(outputs_, op_.signature.backward_reads_outputs);
  }

  // Bytes of an enumeration: std::fill writes them one by one.
  void Poison(std::span<std::byte> content) const {
    if (!content.empty()) std::memset(content.data(), int(options_.poison), content.size());
  }

  std::span<std::byte> Add(const std::string& name, size_t size_bytes, uint32_t writers) {
    const std::span<std::byte> content = memory_.Add(size_bytes);
    Poison(content);
    blocks_.push_back({name, writers, content});
    return content;
  }

  Block& Find(const TensorView& view) {
    const auto* const data = memory_.OnHost(view.data);
    return *std::ranges::find_if(blocks_,
                                 [&](const Block& block) { return block.content.data() == data; });
  }

  std::vector<float> Content(const TensorView& view) {
    std::vector<float> values(static_cast<size_t>(view.count()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(ReadElement(view.dtype, memory_.OnHost(view.data), i));
    }
    return values;
  }

  TensorView View(const std::string& name, const Tensor& tensor, bool write, uint32_t writers) {
    const size_t size_bytes = tensor.values.size() * engine::SizeOf(tensor.spec.dtype);
    const std::span<std::byte> content = Add(name, size_bytes, writers);
    if (write) Encode(tensor, content.data());
    return {memory_.OnDevice(content), tensor.shape(), tensor.spec.dtype};
  }

  void AddInput(const Tensor& input) {
    const size_t i = inputs_.size();
    const uint32_t writers = op_.is_buffer(i) && options_.training ? kForward : 0;
    inputs_.push_back(View("input " + std::to_string(i), input, true, writers));
    batched_.push_back(input.spec.batched != 0);
  }

  void AddScalars() {
    const StepScalars scalars{.step = options_.random.step,
                              .first_sample = options_.random.first_sample};
    const std::span<std::byte> content = Add("the scalars of the step", sizeof scalars, 0);
    std::ranges::copy(std::as_bytes(std::span(&scalars, 1)), content.begin());
    scalars_ = static_cast<const StepScalars*>(memory_.OnDevice(content));
  }

  // The next output and its gradient. In the memory of an input where it may or must be.
  void AddOutput(const Tensor& gradient) {
    const std::string name = "output " + std::to_string(outputs_.size());
    const OpSignature& signature = op_.signature;
    int32_t alias = outputs_.empty() ? signature.output_is_view_of : -1;
    if (outputs_.empty() && alias < 0 && (options_.in_place || op_.always_in_place)) {
      alias = signature.in_place_of;
      if (alias >= 0) Find(inputs_[static_cast<size_t>(alias)]).writers |= kForward;
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
        Find(view).writers |= kBoth;
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

  Accelerator* const accelerator_;  // or null
  MadeOp& op_;
  const RunOptions options_;
  const std::unique_ptr<Stream> stream_;
  DeviceMemory memory_;
  std::vector<Block> blocks_;
  std::vector<TensorView> inputs_, outputs_, output_gradients_, input_gradients_;
  std::vector<bool> batched_;  // of each input
  std::span<std::byte> saved_, workspace_;
  const StepScalars* scalars_ = nullptr;
  uint32_t gradient_in_place_ = 0;
};

OpRun::OpRun(Device* device, MadeOp& op, const Problem& problem, const RunOptions& options)
    : state_(std::make_unique<State>(device, op, problem, options)) {}
OpRun::~OpRun() = default;

void OpRun::Forward() {
  state_->Forward();
}
void OpRun::Backward() {
  state_->Backward();
}
RunResult& OpRun::result() {
  return state_->result;
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
    std::ranges::copy(gradient.values, std::back_inserter(all));
  }
  return all;
}

std::vector<float> RunResult::AllOutputs() const {
  std::vector<float> all;
  for (const auto& output : outputs) all.insert(all.end(), output.begin(), output.end());
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
