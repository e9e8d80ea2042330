#include "tests/conformance/ops/op_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

namespace engine::test {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr std::byte kPoison{0xff};  // four of them are a NaN, and -1

void Check(const Status& status) {
  ASSERT_TRUE(status.ok()) << status.message();
}

// The values of a tensor as the device holds them.
std::vector<std::byte> Encode(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.values.size() * 4);
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    if (tensor.spec.dtype == DType::kInt32) {
      const auto value = static_cast<int32_t>(tensor.values[i]);
      std::memcpy(&bytes[i * 4], &value, 4);
    } else {
      const auto value = static_cast<float>(tensor.values[i]);
      std::memcpy(&bytes[i * 4], &value, 4);
    }
  }
  return bytes;
}

std::vector<float> Decode(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / 4);
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
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
    }
  }
  return tensor;
}

TensorSpec WithSamples(TensorSpec spec, int64_t samples) {
  if (spec.batched != 0) spec.shape[0] = samples;
  return spec;
}

// All memory of one call.
class CallMemory {
 public:
  CallMemory(Device* device, const OpSignature& signature, const OpCase& op_case,
             const Problem& problem, const RunOptions& options)
      : device_(device), signature_(signature), options_(options) {
    const size_t output_bytes = problem.output_gradient.values.size() * 4;
    for (const Tensor& input : problem.inputs) inputs_.push_back(View(input, true));
    const int32_t alias = OutputAlias(op_case);
    outputs_.push_back(alias >= 0 ? AliasOf(inputs_[static_cast<size_t>(alias)], problem)
                                  : View(problem.output_gradient, false));
    EXPECT_EQ(outputs_[0].size_bytes(), output_bytes);
    output_gradients_.push_back(View(problem.output_gradient, true));
    for (size_t i = 0; i < problem.inputs.size(); ++i) AddGradient(i, problem.inputs[i]);
    saved_ = Add(static_cast<size_t>(signature.saved_bytes));
    workspace_ = Add(static_cast<size_t>(signature.workspace_bytes));
    Check(device->CreateStream(&raw_stream_));
    stream_.reset(raw_stream_);
  }

  OpCall Call() const {
    return {.inputs = inputs_,
            .outputs = outputs_,
            .output_grads = output_gradients_,
            .input_grads = input_gradients_,
            .accumulate = options_.accumulate,
            .training = options_.training ? 1u : 0u,
            .saved = saved_->data(),
            .workspace = workspace_->data(),
            .stream = raw_stream_,
            .seed = options_.random.seed,
            .step = options_.random.step,
            .node = options_.random.node,
            .first_sample = options_.random.first_sample,
            .replicas = options_.replicas};
  }

  // Between Forward and Backward: scratch is lost, and what Backward does not read may be.
  void AfterForward() {
    workspace_->Poison();
    if (!options_.hide_undeclared) return;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!(signature_.backward_reads_inputs >> i & 1)) Memory(inputs_[i].data)->Poison();
    }
    if (!(signature_.backward_reads_outputs & 1)) Memory(outputs_[0].data)->Poison();
  }

  std::vector<float> Input(size_t input) { return Decode(Memory(inputs_[input].data)->Read()); }

  std::vector<float> Output() { return Decode(Memory(outputs_[0].data)->Read()); }

  std::vector<float> Gradient(size_t input) {
    const TensorView& view = input_gradients_[input];
    return view.data == nullptr ? std::vector<float>{} : Decode(Memory(view.data)->Read());
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

  DeviceMemory* Memory(const void* data) {
    const auto found = std::find_if(memory_.begin(), memory_.end(),
                                    [&](const auto& memory) { return memory->data() == data; });
    return found->get();
  }

  TensorView View(const Tensor& tensor, bool write) {
    DeviceMemory* memory = Add(tensor.values.size() * 4);
    const std::vector<std::byte> bytes = Encode(tensor);
    if (write) memory->Write(bytes.data(), bytes.size());
    return {memory->data(), tensor.shape(), tensor.spec.dtype};
  }

  static TensorView AliasOf(const TensorView& view, const Problem& problem) {
    return {view.data, problem.output_gradient.shape(), view.dtype};
  }

  // The input whose memory the output gets, or -1.
  int32_t OutputAlias(const OpCase& op_case) const {
    if (signature_.output_is_view_of >= 0) return signature_.output_is_view_of;
    return op_case.always_in_place || options_.in_place ? signature_.in_place_of : -1;
  }

  void AddGradient(size_t i, const Tensor& input) {
    TensorView view{nullptr, input.shape(), input.spec.dtype};
    if ((signature_.differentiable_inputs & options_.wanted) >> i & 1) {
      if (options_.share_gradient && (signature_.passes_gradient >> i & 1)) {
        view.data = output_gradients_[0].data;
      } else {
        Tensor before = input;
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
  Stream* raw_stream_ = nullptr;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

DeviceMemory::DeviceMemory(Device* device, size_t size_bytes)
    : device_(device), size_bytes_(size_bytes) {
  Stream* stream = nullptr;
  Check(device_->CreateStream(&stream));
  stream_.reset(stream);
  Check(device_->Allocate(size_bytes_ + kGuardBytes, &data_));
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
  Check(device_->Copy(data_, source, size_bytes, stream_.get()));
  Check(stream_->Synchronize(10'000));
}

std::vector<std::byte> DeviceMemory::ReadAll() const {
  std::vector<std::byte> bytes(size_bytes_ + kGuardBytes);
  Check(device_->Copy(bytes.data(), data_, bytes.size(), stream_.get()));
  Check(stream_->Synchronize(10'000));
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

LoadedOps LoadedOps::Load(const std::string& path, int threads) {
  Result<PluginUnderTest> plugin = PluginUnderTest::Load(path);
  if (!plugin.ok()) throw std::runtime_error(plugin.status().message());
  auto host = std::make_shared<LoneHost>();
  auto library = plugin->Create<OpLibrary>(*host, {{"threads", std::to_string(threads)}});
  if (!library.ok()) throw std::runtime_error(library.status().message());
  return {std::move(*plugin), std::move(host), std::move(*library)};
}

Result<MadeOp> MakeOp(const LoadedOps& ops, const std::string& name,
                      const OptionValues::Overrides& attributes,
                      std::span<const TensorSpec> inputs) {
  const OptionValues values(ops.plugin.option_specs(), name, attributes);
  Op* op = nullptr;
  ENGINE_RETURN_IF_ERROR(ops.library->CreateOp(name, values.options(), &op));
  MadeOp made{std::unique_ptr<Op>(op), {}};
  ENGINE_RETURN_IF_ERROR(op->Infer(inputs, &made.signature));
  return made;
}

Problem MakeProblem(const OpCase& op_case, const OpSignature& signature, int64_t samples,
                    uint64_t seed) {
  std::mt19937_64 random(seed);
  Problem problem;
  for (const TensorSpec& input : op_case.inputs) {
    problem.inputs.push_back(RandomTensor(WithSamples(input, samples), op_case, random));
  }
  for (int32_t i = 0; i < signature.parameter_count; ++i) {
    const TensorSpec spec{signature.parameters[i].shape, DType::kFloat32, 0};
    problem.inputs.push_back(RandomTensor(spec, op_case, random));
  }
  problem.output_gradient =
      RandomTensor(WithSamples(signature.outputs[0], samples), op_case, random);
  if (signature.is_loss != 0) problem.output_gradient.values = {1, 0, 0};
  return problem;
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
  part.output_gradient = cut(problem.output_gradient);
  return part;
}

RunResult RunOp(const LoadedOps& ops, MadeOp& made, const OpCase& op_case, const Problem& problem,
                const RunOptions& options) {
  CallMemory memory(ops.library->device(), made.signature, op_case, problem, options);
  const OpCall call = memory.Call();
  RunResult result;
  result.status = made.op->Forward(call);
  if (!result.status.ok()) return result;
  Check(memory.stream()->Synchronize(10'000));
  result.output = memory.Output();
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    if (problem.inputs[i].spec.batched == 0) result.parameters.push_back(memory.Input(i));
  }
  result.guards_intact = memory.guards_intact();
  if (!options.training) return result;
  memory.AfterForward();
  result.status = made.op->Backward(call);
  if (!result.status.ok()) return result;
  Check(memory.stream()->Synchronize(10'000));
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    result.gradients.push_back(memory.Gradient(i));
  }
  result.guards_intact = memory.guards_intact();
  return result;
}

std::string LibraryName(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  name.erase(std::min(name.find('.'), name.size()));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

}  // namespace engine::test
