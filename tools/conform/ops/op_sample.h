// Ops of a library, and what they are fed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/conform/ops/op_run.h"
#include "tools/conform/plugin_under_test.h"

namespace engine::conform {

constexpr DType kAllDTypes[] = {DType::kFloat32, DType::kInt32, DType::kUint8, DType::kBFloat16,
                                DType::kFloat16};

// "conv2d(kernel=3)=float32[5*,6,4,3]": an op with some attributes, the others at their defaults,
// and the full batch that it is fed. The star marks the dimension of samples.
struct OpSample {
  std::string op;
  OptionValues::Overrides attributes;
  std::vector<TensorSpec> inputs;

  static Result<OpSample> Parse(const std::string& text);
  std::string Text() const;
  // Samples of the full batch; 0 where no input has any.
  int64_t samples() const;
};

// An instance of a library, with the device that its ops run on: its own, that of `other`, or the
// host.
class LoadedOps {
 public:
  static LoadedOps Load(const PluginUnderTest& plugin, const OptionValues::Overrides& options = {},
                        const RankInfo& ranks = {}, const PluginUnderTest* other = nullptr);

  Device* device() const { return device_; }
  OpLibrary& library() const { return *library_; }
  // A new instance, its Infer called.
  Result<MadeOp> Make(const OpSample& sample) const;
  // `values` are those of the sample.
  Result<MadeOp> Make(const OpSample& sample, const OptionValues& values) const;

 private:
  const PluginUnderTest* plugin_ = nullptr;
  // In this order: each is used by those behind it.
  std::unique_ptr<Device> host_device_;
  std::unique_ptr<MemoryHost> other_host_, host_;
  std::unique_ptr<OpLibrary> other_, library_;
  Device* device_ = nullptr;
};

// Where the values of inputs lie.
struct Domain {
  bool positive = false;          // floats in (0.25, 1.25), else in (-1, 1)
  int64_t smallest = 0, end = 2;  // integers in [smallest, end)
};

// Floats are odd multiples of this, each another one, so that a move by half of it passes neither 0
// nor a neighbour, where a function may have a kink. (Of bfloat16 there are too few.)
constexpr double GridStep(size_t count) {
  double step = 0x1p-7;
  while (step * static_cast<double>(count) > 1) step /= 2;
  return step;
}

// Inputs, and gradients of the outputs, for `samples` of a sample's full batch.
Problem MakeProblem(const OpSample& sample, const Domain& domain, const MadeOp& op, int64_t samples,
                    uint32_t seed);

}  // namespace engine::conform
