// Every convolution of the models cnn and resnet18 at the batch that they are measured with, one
// thread: conv2d of the plugin cpu_ops (with all that the op does) beside oneDNN's primitive alone in its best
// layout and in channels-last, and sgemm as a measure of the machine. Milliseconds of processor
// time, and GFLOP/s that count padding as work.
//
//   cmake -S . -B build/bench -DENGINE_BENCH=ON -DCMAKE_BUILD_TYPE=Release
//   cmake --build build/bench --target conv_layers && build/bench/bench/conv_layers
//   build/bench/lib/engine/plugins/libengine_cpu_ops.so [PART OF A NAME]
#include <omp.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/conv_layer.h"
#include "bench/support/folder_host.h"
#include "bench/support/plugin_library.h"

namespace engine::bench {
namespace {

constexpr ConvLayer kLayers[] = {
    // name, samples, inputs, extent, channels, kernel, stride, padding
    {"cnn conv1", 64, 1, 28, 32, 3, 1, 1},
    {"cnn conv2", 64, 32, 28, 64, 3, 1, 1},
    {"resnet18 stem", 16, 3, 32, 64, 7, 2, 3},
    {"resnet18 stage 1 (4x)", 16, 64, 8, 64, 3, 1, 1},
    {"resnet18 stage 2 first", 16, 64, 8, 128, 3, 2, 1},
    {"resnet18 stage 2 skip", 16, 64, 8, 128, 1, 2, 0},
    {"resnet18 stage 2 (3x)", 16, 128, 4, 128, 3, 1, 1},
    {"resnet18 stage 3 first", 16, 128, 4, 256, 3, 2, 1},
    {"resnet18 stage 3 skip", 16, 128, 4, 256, 1, 2, 0},
    {"resnet18 stage 3 (3x)", 16, 256, 2, 256, 3, 1, 1},
    {"resnet18 stage 4 first", 16, 256, 2, 512, 3, 2, 1},
    {"resnet18 stage 4 skip", 16, 256, 2, 512, 1, 2, 0},
    {"resnet18 stage 4 (3x)", 16, 512, 1, 512, 3, 1, 1},
    {"56x56 64 to 64", 4, 64, 56, 64, 3, 1, 1},
};

class TimedOp {
 public:
  TimedOp(const PluginLibrary& plugin, OpLibrary& library, const ConvLayer& layer) {
    const OptionTexts attributes(plugin.option_specs(), "conv2d",
                                 {{"channels", std::to_string(layer.channels)},
                                  {"kernel", std::to_string(layer.kernel)},
                                  {"stride", std::to_string(layer.stride)},
                                  {"padding", std::to_string(layer.padding)},
                                  {"bias", "false"}});
    Op* op = nullptr;
    Must(library.CreateOp("conv2d", attributes.options(), &op));
    op_.reset(op);
    const TensorSpec x = {
        {layer.samples, layer.extent, layer.extent, layer.inputs}, DType::kFloat32, 1};
    OpSignature signature;
    ENGINE_CHECK(op_->Infer({&x, 1}, &signature).ok(), "conv2d refused a layer");
    inputs_ = {Tensor(x.shape), Tensor(signature.parameters[0].shape)};
    gradients_ = {Tensor(x.shape), Tensor(signature.parameters[0].shape)};
    output_ = {Tensor(signature.outputs[0].shape)};
    output_gradient_ = {Tensor(signature.outputs[0].shape)};
    workspace_.resize(static_cast<size_t>(signature.workspace_bytes));
  }

  ConvTimes Time() {
    return {MedianMs([&] { Must(op_->Forward(Call(0))); }),
            MedianMs([&] { Must(op_->Backward(Call(1u << 0))); }),
            MedianMs([&] { Must(op_->Backward(Call(1u << 1))); })};
  }

 private:
  static void Must(const Status& status) { ENGINE_CHECK(status.ok(), "%s", status.message()); }

  TensorView Tensor(const Shape& shape) {
    memory_.emplace_back(static_cast<size_t>(shape.Count()), 0.1f);
    return {memory_.back().data(), shape, DType::kFloat32};
  }

  OpCall Call(uint32_t wanted) {
    call_gradients_ = gradients_;
    for (size_t i = 0; i < call_gradients_.size(); ++i) {
      if ((wanted >> i & 1u) == 0) call_gradients_[i].data = nullptr;
    }
    return {.inputs = inputs_,
            .outputs = output_,
            .output_grads = output_gradient_,
            .input_grads = call_gradients_,
            .workspace = workspace_.data()};
  }

  std::unique_ptr<Op> op_;
  std::vector<std::vector<float>> memory_;
  std::vector<TensorView> inputs_, gradients_, call_gradients_, output_, output_gradient_;
  std::vector<std::byte> workspace_;
};

void PrintPass(const ConvLayer& layer, const char* pass, double ours, double best, double last) {
  const auto rate = [&](double ms) { return layer.gflop() / ms * 1e3; };
  std::printf("%-24s %-8s %8.3f ms %4.0f | oneDNN best %8.3f ms %4.0f, channels-last %8.3f ms\n",
              layer.name, pass, ours, rate(ours), best, rate(best), last);
}

// Only layers whose name contains `filter`.
Status Run(const char* path, const char* filter) {
  omp_set_num_threads(1);
  FolderHost host({}, {});  // a world of one, without a store
  ENGINE_ASSIGN_OR_RETURN(const PluginLibrary plugin, PluginLibrary::Load(path));
  ENGINE_ASSIGN_OR_RETURN(const auto library, plugin.Create<OpLibrary>(host, {{"threads", "1"}}));
  for (int64_t size : {512, 1024}) {
    std::printf("sgemm %ld^3: %.0f GFLOP/s\n", static_cast<long>(size),
                2e-6 * static_cast<double>(size * size * size) / TimeSgemm(size, size, size));
  }
  for (const ConvLayer& layer : kLayers) {
    if (std::strstr(layer.name, filter) == nullptr) continue;
    const ConvTimes ours = TimedOp(plugin, *library, layer).Time();
    const ConvTimes best = TimeOneDnn(layer, false), last = TimeOneDnn(layer, true);
    PrintPass(layer, "forward", ours.forward, best.forward, last.forward);
    PrintPass(layer, "data", ours.data, best.data, last.data);
    PrintPass(layer, "weights", ours.weights, best.weights, last.weights);
    std::printf("%-24s weights to oneDNN's layout %.3f ms\n", layer.name,
                TimeOneDnnWeightReorder(layer));
  }
  return {};
}

}  // namespace
}  // namespace engine::bench

int main(int argc, char** argv) {
  std::setbuf(stdout, nullptr);
  const engine::Status status =
      engine::bench::Run(argc > 1 ? argv[1] : "libengine_cpu_ops.so", argc > 2 ? argv[2] : "");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message());
  return status.ok() ? 0 : 1;
}
