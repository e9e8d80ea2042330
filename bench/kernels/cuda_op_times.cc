// Every op of a step of GPT-2 (124 million parameters) on a GPU, alone: microseconds, and what that
// is in TFLOP/s (of the products that the algorithm needs) and GB/s (of operands and results, each
// moved once). One line of JSON per op with --json.
//
//   cmake --build build/release --target cuda_op_times engine_cuda_ops
//   build/release/bench/cuda_op_times build/release/lib/engine/plugins/libengine_cuda_ops.so
//     [SAMPLES [bf16|tf32|float32 [OP]]] [OPTION=VALUE...] [--json]
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "app/launch/folder_host.h"
#include "app/plugins/option_value.h"
#include "bench/collectives/contender.h"
#include "core/graph/device_buffer.h"
#include "core/plugin/create_object.h"

namespace engine::bench {
namespace {

constexpr int64_t kContext = 1024, kWidth = 768, kHeads = 12, kVocabulary = 50304;

// An op with inputs of a full batch, in memory of its device, and what one call must do at least.
struct TimedCase {
  std::string name;
  std::string op;
  std::vector<plugin::OwnedOption> attributes;
  std::vector<TensorSpec> inputs;
  int64_t classes = 0;      // int32 inputs hold numbers below it
  double forward_flop = 0;  // of one call
  double backward_flop = 0;
};

struct OpTime {
  double forward_us = 0, backward_us = 0;        // medians
  double forward_bytes = 0, backward_bytes = 0;  // read and written once each
};

constexpr int64_t kTimeoutMs = 60000;

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

// Queues `calls` calls at once, `rounds` times, after one round that is not counted, on the device
// that the plugin brings. The memory of one call from top to bottom; parts would only pass its ten
// arrays around.
// NOLINTNEXTLINE(readability-function-size)
Result<OpTime> TimeOf(const TimedCase& timed, const plugin::PluginEntry& plugin, OpLibrary& library,
                      int calls, int rounds) {
  ENGINE_ASSIGN_OR_RETURN(const auto attributes,
                          plugins::CompleteAttributes(plugin, timed.op, timed.attributes));
  const std::vector<OptionValue> values = plugin::Views(attributes);
  Op* raw = nullptr;
  ENGINE_RETURN_IF_ERROR(library.CreateOp(timed.op, Options(values), &raw));
  const std::unique_ptr<Op> op(raw);
  Device& device = *library.device();
  OpSignature signature;
  ENGINE_RETURN_IF_ERROR(op->Infer(timed.inputs, &signature));
  Stream* raw_stream = nullptr;
  ENGINE_RETURN_IF_ERROR(device.CreateStream(&raw_stream));
  const std::unique_ptr<Stream> stream(raw_stream);

  CallMemory memory(device, *stream);
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

plugin::OwnedOption Attribute(const char* name, int64_t value) {
  return {.name = name, .type = OptionType::kInt, .integer = value};
}

std::vector<TimedCase> Cases(int64_t samples, DType activation) {
  const auto x = [&](int64_t width) {
    return TensorSpec{{samples, kContext, width}, activation, 1};
  };
  const TensorSpec tokens{{samples, kContext}, DType::kInt32, 1};
  const double rows = static_cast<double>(samples * kContext);
  const auto product = [&](const char* name, const char* op, int64_t from, int64_t to) {
    const double flop = 2 * rows * static_cast<double>(from) * static_cast<double>(to);
    return TimedCase{.name = name,
                     .op = op,
                     .attributes = {Attribute("units", to)},
                     .inputs = {x(from)},
                     .forward_flop = flop,
                     .backward_flop = 2 * flop};
  };
  // Two products of T x T x width, half of them behind the diagonal; backward has five.
  const double attention = 2 * rows * static_cast<double>(kContext * kWidth);
  std::vector<TimedCase> cases;
  cases.push_back({.name = "embedding",
                   .op = "embedding",
                   .attributes = {Attribute("vocabulary", kVocabulary), Attribute("width", kWidth),
                                  Attribute("positions", kContext)},
                   .inputs = {tokens},
                   .classes = kVocabulary});
  cases.push_back({.name = "norm", .op = "layer_norm", .inputs = {x(kWidth)}});
  cases.push_back({.name = "add, norm", .op = "add_layer_norm", .inputs = {x(kWidth), x(kWidth)}});
  cases.push_back(product("qkv", "linear", kWidth, 3 * kWidth));
  cases.push_back({.name = "attention",
                   .op = "attention",
                   .attributes = {Attribute("heads", kHeads)},
                   .inputs = {x(3 * kWidth)},
                   .forward_flop = attention,
                   .backward_flop = 2.5 * attention});
  cases.push_back(product("proj", "linear", kWidth, kWidth));
  cases.push_back(product("mlp", "mlp", kWidth, 4 * kWidth));
  for (double* flop : {&cases.back().forward_flop, &cases.back().backward_flop}) *flop *= 2;
  const double head = 2 * rows * static_cast<double>(kWidth * kVocabulary);
  cases.push_back({.name = "head",
                   .op = "tied_linear",
                   .inputs = {x(kWidth), {{kVocabulary, kWidth}, activation, 0}},
                   .forward_flop = head,
                   .backward_flop = 2 * head});
  cases.push_back({.name = "loss",
                   .op = "softmax_cross_entropy",
                   .inputs = {x(kVocabulary), tokens},
                   .classes = kVocabulary});
  return cases;
}

void Print(const TimedCase& timed, const char* pass, double us, double flop, double bytes,
           bool json) {
  const double tflops = flop / us * 1e-6, gbytes = bytes / us * 1e-3;
  if (json) {
    std::printf(
        "{\"op\": \"%s\", \"pass\": \"%s\", \"us\": %.2f, \"tflops\": %.1f, "
        "\"gbytes_per_s\": %.0f}\n",
        timed.name.c_str(), pass, us, tflops, gbytes);
  } else {
    std::printf("%-14s %-9s %10.1f %10.1f %10.0f\n", timed.name.c_str(), pass, us, tflops, gbytes);
  }
  std::fflush(stdout);  // whatever comes next
}

int Run(int argc, char** argv) {
  bool json = false;
  std::vector<std::string> words;
  std::vector<std::string> options;
  for (int i = 1; i < argc; ++i) {
    const char* const word = argv[i];
    if (std::strcmp(word, "--json") == 0) {
      json = true;
    } else {
      (std::strchr(word, '=') ? options : words).emplace_back(word);
    }
  }
  if (words.empty()) {
    std::fprintf(stderr,
                 "usage: cuda_op_times PLUGIN [SAMPLES [bf16|tf32|float32 [OP]]] [OPTION=VALUE...] "
                 "[--json]\n");
    return 2;
  }
  const int64_t samples = words.size() > 1 ? std::atoll(words[1].c_str()) : 64;
  const std::string precision = words.size() > 2 ? words[2] : "bf16";
  static launch::FolderHost host({}, {});  // a world of one, without a store; plugins may keep it
  options.insert(options.begin(), "precision=" + precision);
  const auto choice = ChoosePlugin(words[0], options, {});
  const auto library = choice.ok() ? plugin::Create<OpLibrary>(*choice, host)
                                   : Result<std::unique_ptr<OpLibrary>>(choice.status());
  if (!library.ok() || samples < 1) {
    std::fprintf(stderr, "cuda_op_times: %s\n",
                 library.ok() ? "SAMPLES must be at least 1" : library.status().message());
    return library.ok() ? 2 : 79;
  }
  if (!json) {
    std::printf("%lld samples of %lld tokens, %s\n%-14s %-9s %10s %10s %10s\n",
                static_cast<long long>(samples), static_cast<long long>(kContext),
                precision.c_str(), "op", "pass", "us", "TFLOP/s", "GB/s");
  }
  const DType activation = precision == "bf16" ? DType::kBFloat16 : DType::kFloat32;
  for (const TimedCase& timed : Cases(samples, activation)) {
    if (words.size() > 3 && timed.name != words[3]) continue;
    const auto time = TimeOf(timed, choice->entry, **library, 20, 5);
    if (!time.ok()) {
      std::fprintf(stderr, "cuda_op_times: %s: %s\n", timed.name.c_str(), time.status().message());
      return 1;
    }
    Print(timed, "forward", time->forward_us, timed.forward_flop, time->forward_bytes, json);
    Print(timed, "backward", time->backward_us, timed.backward_flop, time->backward_bytes, json);
  }
  return 0;
}

}  // namespace
}  // namespace engine::bench

int main(int argc, char** argv) {
  return engine::bench::Run(argc, argv);
}
