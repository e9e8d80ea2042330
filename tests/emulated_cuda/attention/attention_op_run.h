// A forward and a backward pass of the op attention, on the numbers of Problem.
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "cuda_op.h"
#include "tests/emulated_cuda/attention/attention_values.h"

namespace engine::cuda_ops::test {

struct OpSettings {
  bool sum = false;      // add to the gradient
  bool training = true;  // else nothing is saved, and there is no backward pass
  int32_t samples = 0;   // less than a full batch; 0: full
  size_t offset = 0;     // elements between the beginning of an allocation and qkv
};

template <typename T>
struct OpResults {
  std::vector<T> y, dqkv;
  std::vector<float> workspace;
};

// T is the activation of the run.
template <typename T>
constexpr DType kActivation = std::is_same_v<T, Bf16> ? DType::kBFloat16 : DType::kFloat32;

struct AttentionOpOnDevice {
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Op> op;
  OpSignature signature;
};

// `plans`: null for our own kernels.
template <typename T>
AttentionOpOnDevice MakeAttentionOp(const AttentionShape& full, AttentionPlans* plans) {
  AttentionOpOnDevice made;
  EXPECT_TRUE(CudaDevice::Create(0, 0, &made.device).ok());
  Stream* stream = nullptr;
  EXPECT_TRUE(made.device->CreateStream(&stream).ok());
  made.stream.reset(stream);
  const OptionValue values[] = {
      {.name = "heads", .type = OptionType::kInt, .integer = full.heads},
      {.name = "causal", .type = OptionType::kBool, .integer = full.causal ? 1 : 0}};
  const bool bf16 = kActivation<T> == DType::kBFloat16;
  made.op.reset(kMakeAttention({.name = "attention",
                                .device = made.device.get(),
                                .precision = bf16 ? Precision::kBFloat16 : Precision::kFloat32,
                                .attention = plans},
                               Options(values)));
  const Shape qkv = {full.batch, full.length, full.packed_width()};
  const std::vector<TensorSpec> inputs = {{qkv, kActivation<T>, 1}};
  EXPECT_TRUE(made.op->Infer(inputs, &made.signature).ok());
  return made;
}

template <typename T>
OpResults<T> RunAttentionOp(const AttentionShape& full, const OpSettings& settings = {},
                            AttentionPlans* plans = nullptr) {
  constexpr DType kType = kActivation<T>;
  const AttentionOpOnDevice made = MakeAttentionOp<T>(full, plans);
  AttentionShape shape = full;
  if (settings.samples > 0) shape.batch = settings.samples;
  const Problem<T> problem(shape);
  std::vector<T> moved(settings.offset);
  moved.insert(moved.end(), problem.qkv.begin(), problem.qkv.end());
  const Array<T> qkv(moved), dy(problem.dy), y(problem.dy.size());
  const Array<T> untouched(problem.qkv.size()), added(problem.before);
  const Array<T>& dqkv = settings.sum ? added : untouched;
  const Array<float> saved(Size(made.signature.saved_bytes / 4)),
      workspace(Size(made.signature.workspace_bytes / 4));
  const Shape packed = {shape.batch, shape.length, shape.packed_width()},
              plain = {shape.batch, shape.length, shape.width()};
  const TensorView inputs[] = {{qkv.data() + settings.offset, packed, kType}},
                   outputs[] = {{y.data(), plain, kType}},
                   output_grads[] = {{dy.data(), plain, kType}},
                   input_grads[] = {{dqkv.data(), packed, kType}};
  const OpCall call = {.inputs = inputs,
                       .outputs = outputs,
                       .output_grads = output_grads,
                       .input_grads = input_grads,
                       .accumulate = settings.sum ? 1u : 0u,
                       .training = settings.training ? 1u : 0u,
                       .saved = settings.training ? saved.data() : nullptr,
                       .workspace = workspace.data(),
                       .stream = made.stream.get()};
  EXPECT_TRUE(made.op->Forward(call).ok());
  if (settings.training) {
    EXPECT_TRUE(made.op->Backward(call).ok());
  }
  EXPECT_TRUE(made.stream->Synchronize(10'000).ok());
  saved.Read();  // nothing behind it is written
  return {y.Read(), settings.training ? dqkv.Read() : std::vector<T>(), workspace.Read()};
}

}  // namespace engine::cuda_ops::test
