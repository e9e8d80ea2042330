#include "bench/kernels/op_times.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <functional>
#include <random>
#include <utility>

#include "bench/support/folder_host.h"
#include "core/graph/device_buffer.h"

namespace engine::bench {
namespace {

constexpr int64_t kTimeoutMs = 60000;

// A world of one, without a store.
FolderHost& TheHost() {
  static FolderHost host({}, {});  // plugins may keep it
  return host;
}

// Memory of one op's call, filled with small numbers.
class CallMemory {
 public:
  CallMemory(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  Result<TensorView> Make(const TensorSpec& spec, int64_t classes) {
    TensorView view{.shape = spec.shape, .dtype = spec.dtype};
    ENGINE_ASSIGN_OR_RETURN(graph::DeviceBuffer buffer,
                            graph::DeviceBuffer::Create(device_, view.size_bytes(), &stream_));
    view.data = buffer.data();
    buffers_.push_back(std::move(buffer));
    ENGINE_RETURN_IF_ERROR(Fill(view, classes));
    return view;
  }

  Result<void*> Scratch(int64_t size_bytes) {
    ENGINE_ASSIGN_OR_RETURN(
        graph::DeviceBuffer buffer,
        graph::DeviceBuffer::Create(device_, static_cast<size_t>(size_bytes), &stream_));
    buffers_.push_back(std::move(buffer));
    return buffers_.back().data();
  }

 private:
  // A pattern of 1 MiB over and over: its content does not matter to the time, its spread does (a
  // chip that multiplies zeros runs faster).
  Status Fill(const TensorView& view, int64_t classes) {
    std::mt19937 random(7);
    std::vector<uint32_t> pattern(1 << 18);
    for (uint32_t& word : pattern) {
      const float value = static_cast<float>(random() >> 8) * 0x1p-24f - 0.5f;
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      word = view.dtype == DType::kInt32      ? random() % static_cast<uint32_t>(classes)
             : view.dtype == DType::kBFloat16 ? (bits & 0xffff0000u) | (bits >> 16)
                                              : bits;
    }
    const size_t size = pattern.size() * sizeof(uint32_t);
    for (size_t at = 0; at < view.size_bytes(); at += size) {
      ENGINE_RETURN_IF_ERROR(device_.Copy(static_cast<std::byte*>(view.data) + at, pattern.data(),
                                          std::min(size, view.size_bytes() - at), &stream_));
    }
    return stream_.Synchronize(kTimeoutMs);
  }

  Device& device_;
  Stream& stream_;
  std::vector<graph::DeviceBuffer> buffers_;
};

Result<double> MedianUs(Stream& stream, int calls, int rounds,
                        const std::function<Status()>& call) {
  std::vector<double> times;
  for (int round = 0; round <= rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) ENGINE_RETURN_IF_ERROR(call());
    ENGINE_RETURN_IF_ERROR(stream.Synchronize(kTimeoutMs));
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (round > 0) times.push_back(took.count() / calls);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<size_t>(rounds / 2)];
}

double Bytes(const std::vector<TensorView>& views) {
  double sum = 0;
  for (const TensorView& view : views) {
    if (view.data != nullptr) sum += static_cast<double>(view.size_bytes());
  }
  return sum;
}

}  // namespace

Result<std::unique_ptr<OpTimer>> OpTimer::Load(const std::string& path, const Overrides& options) {
  ENGINE_ASSIGN_OR_RETURN(PluginLibrary plugin, PluginLibrary::Load(path));
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<OpLibrary> library,
                          plugin.Create<OpLibrary>(TheHost(), options));
  return std::unique_ptr<OpTimer>(new OpTimer(std::move(plugin), std::move(library)));
}

// The memory of one call from top to bottom; parts would only pass its ten arrays around.
// NOLINTNEXTLINE(readability-function-size)
Result<OpTime> OpTimer::Time(const TimedCase& timed, int calls, int rounds) {
  const OptionTexts values(plugin_.option_specs(), timed.op, timed.attributes);
  Op* raw = nullptr;
  ENGINE_RETURN_IF_ERROR(library_->CreateOp(timed.op, values.options(), &raw));
  const std::unique_ptr<Op> op(raw);
  OpSignature signature;
  ENGINE_RETURN_IF_ERROR(op->Infer(timed.inputs, &signature));
  Stream* raw_stream = nullptr;
  ENGINE_RETURN_IF_ERROR(device().CreateStream(&raw_stream));
  const std::unique_ptr<Stream> stream(raw_stream);

  CallMemory memory(device(), *stream);
  std::vector<TensorView> inputs, outputs, output_grads, input_grads;
  std::vector<TensorSpec> specs = timed.inputs;
  for (int32_t i = 0; i < signature.parameter_count; ++i) {
    specs.push_back({signature.parameters[i].shape, signature.parameters[i].dtype, 0});
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    ENGINE_ASSIGN_OR_RETURN(const TensorView view, memory.Make(specs[i], timed.classes));
    inputs.push_back(view);
    TensorView gradient{.shape = specs[i].shape, .dtype = specs[i].dtype};
    const uint32_t equal = signature.equal_gradients;
    if ((signature.gradient_in_place >> i & 1) != 0) {
      gradient = view;
    } else if ((equal >> i & 1) != 0 && std::countr_zero(equal) < static_cast<int>(i)) {
      gradient = input_grads[static_cast<size_t>(std::countr_zero(equal))];
    } else if ((signature.differentiable_inputs >> i & 1) != 0) {
      TensorSpec spec = specs[i];
      if (spec.batched == 0) spec.dtype = DType::kFloat32;  // of a parameter
      ENGINE_ASSIGN_OR_RETURN(gradient, memory.Make(spec, 0));
    }
    input_grads.push_back(gradient);
  }
  for (int32_t i = 0; i < signature.output_count; ++i) {
    ENGINE_ASSIGN_OR_RETURN(const TensorView view, memory.Make(signature.outputs[i], 0));
    ENGINE_ASSIGN_OR_RETURN(const TensorView gradient, memory.Make(signature.outputs[i], 0));
    outputs.push_back(view);
    output_grads.push_back(gradient);
  }
  ENGINE_ASSIGN_OR_RETURN(void* const saved, memory.Scratch(signature.saved_bytes));
  ENGINE_ASSIGN_OR_RETURN(void* const workspace, memory.Scratch(signature.workspace_bytes));
  const OpCall call{.inputs = inputs,
                    .outputs = outputs,
                    .output_grads = output_grads,
                    .input_grads = input_grads,
                    .gradient_in_place = signature.gradient_in_place,
                    .saved = saved,
                    .workspace = workspace,
                    .stream = stream.get()};
  OpTime time;
  ENGINE_ASSIGN_OR_RETURN(time.forward_us,
                          MedianUs(*stream, calls, rounds, [&] { return op->Forward(call); }));
  ENGINE_ASSIGN_OR_RETURN(time.backward_us,
                          MedianUs(*stream, calls, rounds, [&] { return op->Backward(call); }));
  time.forward_bytes = Bytes(inputs) + Bytes(outputs);
  time.backward_bytes = Bytes(output_grads) + Bytes(input_grads);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool read = (signature.backward_reads_inputs >> i & 1) != 0;
    if (read) time.backward_bytes += static_cast<double>(inputs[i].size_bytes());
  }
  return time;
}

}  // namespace engine::bench
