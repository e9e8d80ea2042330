#include "tests/conformance/ops/op_rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "engine/ext/accelerator.h"
#include "tests/support/elements.h"
#include "tests/support/replica_threads.h"

namespace engine::test {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr int64_t kTimeoutMs = 10'000;
constexpr std::byte kPoison{0xff};  // four of them are a NaN, and -1

size_t SizeBytes(const Tensor& tensor) {
  return tensor.values.size() * SizeOf(tensor.spec.dtype);
}

// The values of a tensor as the device holds them.
std::vector<std::byte> Encode(const Tensor& tensor) {
  std::vector<std::byte> bytes(SizeBytes(tensor));
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    WriteElement(tensor.spec.dtype, bytes.data(), i, tensor.values[i]);
  }
  return bytes;
}

std::vector<float> Decode(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(ReadElement(dtype, bytes.data(), i));
  }
  return values;
}

// Uniform in [-1, 1], rounded to float, and away from 0, where relu has no derivative.
double RandomValue(std::mt19937_64& random) {
  const double uniform = static_cast<double>(random() >> 11) * 0x1p-53 * 2 - 1;
  return static_cast<float>(std::abs(uniform) < 0.01 ? uniform + 0.02 : uniform);
}

Tensor RandomTensor(const TensorSpec& spec, const OpCase& op_case, std::mt19937_64& random) {
  Tensor tensor{spec, Values(static_cast<size_t>(spec.shape.Count()))};
  for (double& value : tensor.values) {
    if (spec.dtype == DType::kInt32) {
      const auto range = static_cast<uint64_t>(op_case.classes - op_case.smallest);
      value = static_cast<double>(op_case.smallest + static_cast<int64_t>(random() % range));
    } else {
      value = RandomValue(random);
      if (spec.dtype == DType::kBFloat16) {
        value = static_cast<double>(FromBFloat16(ToBFloat16(static_cast<float>(value))));
      }
    }
  }
  return tensor;
}

TensorSpec WithSamples(TensorSpec spec, int64_t samples) {
  if (spec.batched != 0) spec.shape[0] = samples;
  return spec;
}

// Null for a device whose work is done when the call returns.
Accelerator* AcceleratorOf(Device* device) {
  return Query<Accelerator>(*device);
}

// The replicas of an op on an accelerator, over others that work on host memory.
class StagedReplicas final : public ReplicasBase {
 public:
  StagedReplicas(Replicas* on_host, Device* device) : on_host_(on_host), device_(device) {}

  int32_t size() const noexcept override { return on_host_->size(); }
  int32_t rank() const noexcept override { return on_host_->rank(); }
  Status Gather(const float* own, int64_t count, float* all, Stream* stream) noexcept override {
    const auto part = static_cast<size_t>(count), whole = part * static_cast<size_t>(size());
    std::vector<float> host_own(part), host_all(whole);
    ENGINE_RETURN_IF_ERROR(device_->Copy(host_own.data(), own, part * sizeof(float), stream));
    ENGINE_RETURN_IF_ERROR(stream->Synchronize(kTimeoutMs));
    ENGINE_RETURN_IF_ERROR(on_host_->Gather(host_own.data(), count, host_all.data(), nullptr));
    ENGINE_RETURN_IF_ERROR(device_->Copy(all, host_all.data(), whole * sizeof(float), stream));
    return stream->Synchronize(kTimeoutMs);
  }

 private:
  Replicas* const on_host_;
  Device* const device_;
};

// All memory of one call.
class CallMemory {
 public:
  CallMemory(Device* device, const OpSignature& signature, const OpCase& op_case,
             const Problem& problem, const RunOptions& options)
      : device_(device),
        signature_(signature),
        options_(options),
        staged_replicas_(options.replicas, device) {
    for (const Tensor& input : problem.inputs) inputs_.push_back(View(input, true));
    for (const Tensor& gradient : problem.output_gradients) {
      AddOutput(gradient, outputs_.empty() ? OutputAlias(op_case) : -1);
    }
    for (size_t i = 0; i < problem.inputs.size(); ++i) {
      const bool is_parameter = i >= op_case.inputs.size() || (op_case.parameters >> i & 1u) != 0;
      AddGradient(i, problem.inputs[i], is_parameter);
    }
    if (AcceleratorOf(device) != nullptr) AddScalars();
    saved_ = Add(static_cast<size_t>(signature.saved_bytes));
    workspace_ = Add(static_cast<size_t>(signature.workspace_bytes));
    Must(device->CreateStream(&raw_stream_));
    stream_.reset(raw_stream_);
  }

  OpCall Call() {
    return {.inputs = inputs_,
            .outputs = outputs_,
            .output_grads = output_gradients_,
            .input_grads = input_gradients_,
            .accumulate = options_.accumulate,
            .training = options_.training ? 1u : 0u,
            .gradient_in_place = gradient_in_place_,
            .saved = saved_->data(),
            .workspace = workspace_->data(),
            .stream = raw_stream_,
            .seed = options_.random.seed,
            .step = scalars_ == nullptr ? options_.random.step : 0,
            .node = options_.random.node,
            .first_sample = scalars_ == nullptr ? options_.random.first_sample : 0,
            .replicas = GivenReplicas(),
            .scalars = scalars_};
  }

  // Between Forward and Backward: scratch is lost, and what Backward does not read may be.
  void AfterForward() {
    workspace_->Poison();
    if (!options_.hide_undeclared) return;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!(signature_.backward_reads_inputs >> i & 1)) Memory(inputs_[i].data)->Poison();
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (!(signature_.backward_reads_outputs >> i & 1)) Memory(outputs_[i].data)->Poison();
    }
  }

  std::vector<float> Input(size_t input) { return Content(inputs_[input]); }
  std::vector<float> Output(size_t output) { return Content(outputs_[output]); }
  std::vector<float> Gradient(size_t input) {
    const TensorView& view = input_gradients_[input];
    return view.data == nullptr ? std::vector<float>{} : Content(view);
  }

  bool guards_intact() const {
    return std::all_of(memory_.begin(), memory_.end(),
                       [](const auto& memory) { return memory->guard_intact(); });
  }

  Stream* stream() const { return raw_stream_; }

 private:
  DeviceMemory* Add(size_t size_bytes) {
    memory_.push_back(std::make_unique<DeviceMemory>(device_, size_bytes));
    return memory_.back().get();
  }

  Replicas* GivenReplicas() {
    const bool staged = options_.replicas != nullptr && AcceleratorOf(device_) != nullptr;
    return staged ? &staged_replicas_ : options_.replicas;
  }

  // What such a device reads instead of the values in the call.
  void AddScalars() {
    const StepScalars scalars{.step = options_.random.step,
                              .first_sample = options_.random.first_sample};
    DeviceMemory* const memory = Add(sizeof scalars);
    memory->Write(&scalars, sizeof scalars);
    scalars_ = static_cast<const StepScalars*>(memory->data());
  }

  DeviceMemory* Memory(const void* data) {
    const auto found = std::find_if(memory_.begin(), memory_.end(),
                                    [&](const auto& memory) { return memory->data() == data; });
    return found->get();
  }

  std::vector<float> Content(const TensorView& view) {
    std::vector<std::byte> bytes = Memory(view.data)->Read();
    bytes.resize(view.size_bytes());
    return Decode(bytes, view.dtype);
  }

  TensorView View(const Tensor& tensor, bool write) {
    DeviceMemory* memory = Add(SizeBytes(tensor));
    const std::vector<std::byte> bytes = Encode(tensor);
    if (write) memory->Write(bytes.data(), bytes.size());
    return {memory->data(), tensor.shape(), tensor.spec.dtype};
  }

  // The output whose gradient this is, in the memory of input `alias` unless that is -1.
  void AddOutput(const Tensor& gradient, int32_t alias) {
    TensorView output = {nullptr, gradient.shape(), gradient.spec.dtype};
    if (alias >= 0) {
      output.data = inputs_[static_cast<size_t>(alias)].data;
    } else {
      output = View(gradient, false);
    }
    const bool missing = (options_.missing >> outputs_.size() & 1) != 0;
    outputs_.push_back(output);
    output_gradients_.push_back(View(gradient, true));
    if (missing) output_gradients_.back().data = nullptr;
  }

  // The input whose memory the output gets, or -1.
  int32_t OutputAlias(const OpCase& op_case) const {
    if (signature_.output_is_view_of >= 0) return signature_.output_is_view_of;
    return op_case.always_in_place || options_.in_place ? signature_.in_place_of : -1;
  }

  // The gradient of an earlier input in whose memory that of input `i` may be, or null.
  void* EqualGradient(size_t i) const {
    const uint32_t equal = signature_.equal_gradients & ~options_.accumulate;
    for (size_t j = 0; j < i && (equal >> i & 1) != 0; ++j) {
      if ((equal >> j & 1) != 0 && input_gradients_[j].data) return input_gradients_[j].data;
    }
    return nullptr;
  }

  void AddGradient(size_t i, const Tensor& input, bool is_parameter) {
    const DType dtype = is_parameter ? DType::kFloat32 : input.spec.dtype;
    TensorView view{nullptr, input.shape(), dtype};
    if ((signature_.differentiable_inputs & options_.wanted) >> i & 1) {
      if (options_.share_gradient && (signature_.passes_gradient >> i & 1)) {
        view.data = output_gradients_[0].data;
      } else if (options_.share_gradient && EqualGradient(i) != nullptr) {
        view.data = EqualGradient(i);
      } else if (options_.gradient_in_place && (signature_.gradient_in_place >> i & 1)) {
        view.data = inputs_[i].data;
        gradient_in_place_ |= 1u << i;
      } else {
        Tensor before = input;
        before.spec.dtype = dtype;
        for (size_t j = 0; j < before.values.size(); ++j) {
          before.values[j] = static_cast<double>(Before(j));
        }
        view = View(before, (options_.accumulate >> i & 1) != 0);
      }
    }
    input_gradients_.push_back(view);
  }

  Device* const device_;
  const OpSignature& signature_;
  const RunOptions& options_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::vector<TensorView> inputs_, outputs_, output_gradients_, input_gradients_;
  DeviceMemory* saved_ = nullptr;
  DeviceMemory* workspace_ = nullptr;
  const StepScalars* scalars_ = nullptr;
  uint32_t gradient_in_place_ = 0;
  StagedReplicas staged_replicas_;
  Stream* raw_stream_ = nullptr;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

DeviceMemory::DeviceMemory(Device* device, size_t size_bytes)
    : device_(device), size_bytes_(size_bytes) {
  Stream* stream = nullptr;
  Must(device_->CreateStream(&stream));
  stream_.reset(stream);
  Must(device_->Allocate(size_bytes_ + kGuardBytes, &data_));
  Poison();
}

DeviceMemory::~DeviceMemory() {
  device_->Free(data_);
}

void DeviceMemory::Poison() {
  const std::vector<std::byte> poison(size_bytes_ + kGuardBytes, kPoison);
  Write(poison.data(), poison.size());
}

void DeviceMemory::Write(const void* source, size_t size_bytes) {
  Must(device_->Copy(data_, source, size_bytes, stream_.get()));
  Must(stream_->Synchronize(kTimeoutMs));
}

std::vector<std::byte> DeviceMemory::ReadAll() const {
  std::vector<std::byte> bytes(size_bytes_ + kGuardBytes);
  Must(device_->Copy(bytes.data(), data_, bytes.size(), stream_.get()));
  Must(stream_->Synchronize(kTimeoutMs));
  return bytes;
}

std::vector<std::byte> DeviceMemory::Read() const {
  std::vector<std::byte> bytes = ReadAll();
  bytes.resize(size_bytes_);
  return bytes;
}

bool DeviceMemory::guard_intact() const {
  const std::vector<std::byte> bytes = ReadAll();
  return std::all_of(bytes.begin() + static_cast<ptrdiff_t>(size_bytes_), bytes.end(),
                     [](std::byte byte) { return byte == kPoison; });
}

bool HasBFloat16(const PluginUnderTest& plugin) {
  const auto offers = [](const OptionSpec& spec) {
    return spec.scope.view().empty() && spec.name.view() == "precision" &&
           spec.choices.view().find("bf16") != std::string_view::npos;
  };
  return std::any_of(plugin.option_specs().begin(), plugin.option_specs().end(), offers);
}

LoadedOps LoadedOps::Load(const std::string& path, const Settings& settings) {
  const PluginUnderTest plugin = Must(PluginUnderTest::Load(path));
  auto host = std::make_shared<MemoryHost>();
  OptionValues::Overrides options = {{"threads", std::to_string(settings.threads)},
                                     {"tune", settings.tune ? "time" : "off"},
                                     {"tune_file", ""}};
  if (settings.activation == DType::kBFloat16) options["precision"] = "bf16";
  std::shared_ptr<OpLibrary> library = Must(plugin.Create<OpLibrary>(*host, options));
  return {plugin, std::move(host), std::move(library)};
}

Result<MadeOp> MakeOp(const LoadedOps& ops, const std::string& name,
                      const OptionValues::Overrides& attributes, Array<const TensorSpec> inputs) {
  const OptionValues values(ops.plugin.option_specs(), name, attributes);
  Op* op = nullptr;
  ENGINE_RETURN_IF_ERROR(ops.library->CreateOp(name, values.options(), &op));
  MadeOp made{std::unique_ptr<Op>(op), {}};
  ENGINE_RETURN_IF_ERROR(op->Infer(inputs, &made.signature));
  return made;
}

MadeOp MakeOp(const LoadedOps& ops, const OpCase& op_case) {
  return Must(MakeOp(ops, op_case.op, op_case.attributes, op_case.inputs));
}

Problem MakeProblem(const OpCase& op_case, const OpSignature& signature, int64_t samples,
                    uint64_t seed) {
  std::mt19937_64 random(seed);
  Problem problem;
  for (const TensorSpec& input : op_case.inputs) {
    problem.inputs.push_back(RandomTensor(WithSamples(input, samples), op_case, random));
  }
  for (int32_t i = 0; i < signature.parameter_count; ++i) {
    const TensorSpec spec{signature.parameters[i].shape, signature.parameters[i].dtype, 0};
    problem.inputs.push_back(RandomTensor(spec, op_case, random));
  }
  for (int32_t i = 0; i < signature.output_count; ++i) {
    problem.output_gradients.push_back(
        RandomTensor(WithSamples(signature.outputs[i], samples), op_case, random));
  }
  if (signature.is_loss != 0) problem.output_gradients[0].values = {1, 0, 0};
  return problem;
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
    if (tensor.spec.batched == 0) return tensor;
    const int64_t size = tensor.spec.shape.Count(1);
    tensor.spec.shape[0] = end - begin;
    tensor.values =
        Values(tensor.values.begin() + begin * size, tensor.values.begin() + end * size);
    return tensor;
  };
  Problem part;
  for (const Tensor& input : problem.inputs) part.inputs.push_back(cut(input));
  for (const Tensor& gradient : problem.output_gradients) {
    part.output_gradients.push_back(cut(gradient));
  }
  return part;
}

RunResult RunOp(const LoadedOps& ops, MadeOp& made, const OpCase& op_case, const Problem& problem,
                const RunOptions& options) {
  CallMemory memory(ops.library->device(), made.signature, op_case, problem, options);
  const OpCall call = memory.Call();
  RunResult result;
  result.status = made.op->Forward(call);
  if (!result.status.ok()) return result;
  Must(memory.stream()->Synchronize(kTimeoutMs));
  // What a device that works on its own found wrong with the data.
  Accelerator* const accelerator = AcceleratorOf(ops.library->device());
  if (accelerator != nullptr) result.status = accelerator->Fault();
  if (!result.status.ok()) return result;
  for (size_t i = 0; i < static_cast<size_t>(made.signature.output_count); ++i) {
    result.outputs.push_back(memory.Output(i));
  }
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    if (problem.inputs[i].spec.batched == 0) result.parameters.push_back(memory.Input(i));
  }
  result.guards_intact = memory.guards_intact();
  if (!options.training) return result;
  memory.AfterForward();
  result.status = made.op->Backward(call);
  if (!result.status.ok()) return result;
  Must(memory.stream()->Synchronize(kTimeoutMs));
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    result.gradients.push_back(memory.Gradient(i));
  }
  result.guards_intact = memory.guards_intact();
  return result;
}

RunResult RunChecked(const LoadedOps& ops, MadeOp& made, const OpCase& op_case,
                     const Problem& problem, const RunOptions& options) {
  RunResult result = RunOp(ops, made, op_case, problem, options);
  EXPECT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_TRUE(result.guards_intact) << "something was written behind a tensor";
  return result;
}

std::vector<RunResult> RunParts(const std::function<LoadedOps()>& load, const OpCase& op_case,
                                const Problem& problem, const std::vector<int64_t>& cuts,
                                ReplicaThreads* replicas, bool training) {
  std::vector<RunResult> results(cuts.size() - 1);
  std::vector<std::jthread> ranks;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      const LoadedOps ops = load();
      MadeOp made = MakeOp(ops, op_case);
      RunOptions options{.training = training};
      options.random.first_sample += static_cast<uint64_t>(cuts[rank]);
      if (replicas) options.replicas = replicas->rank(static_cast<int32_t>(rank));
      results[rank] =
          RunChecked(ops, made, op_case, PartOf(problem, cuts[rank], cuts[rank + 1]), options);
    });
  }
  ranks.clear();  // waits
  return results;
}

void ExpectNear(const std::vector<float>& got, const Values& want, double relative,
                const std::string& what, double absolute) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 0;
  for (double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), want[i], relative * largest + absolute)
        << what << ", element " << i;
  }
}

}  // namespace engine::test
