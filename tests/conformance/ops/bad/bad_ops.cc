// The plugin bad_ops: y = x * weight, the weight as wide as a row, with one fault per op.
#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/op.h"

namespace engine::bad_ops {
namespace {

enum Fault {
  kNone,
  kGradient,
  kOverrun,
  kWritesInput,
  kIgnoresAccumulate,
  kBreaksAtNoSamples,
  kSharedState,
  kDrifts,
  kReadsUndeclared,
  kRandomByRank,
  kMixesSamples,
  kIgnoresUnwanted,
  kRefusesSilently,
  kAllocates,
  kPicky,
};

constexpr std::array<OpName, 15> kOps = {"good",
                                         "gradient",
                                         "overrun",
                                         "writes_input",
                                         "ignores_accumulate",
                                         "no_samples",
                                         "shared_state",
                                         "drifts",
                                         "reads_undeclared",
                                         "random_by_rank",
                                         "mixes_samples",
                                         "ignores_unwanted",
                                         "refuses_silently",
                                         "allocates",
                                         "picky"};

class Product final : public OpBase {
 public:
  explicit Product(Fault fault) : fault_(fault) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    if (inputs.size() != 1 || inputs[0].dtype != DType::kFloat32 || inputs[0].shape.ndim < 2 ||
        (fault_ == kPicky && inputs[0].shape[-1] != 11)) {
      const bool silent = fault_ == kRefusesSilently;
      return Status::Error(StatusCode::kConfig, "%s",
                           silent ? "" : "it needs float32 (B, ..., 11)");
    }
    const TensorSpec& x = inputs[0];
    kit::AddOutput(signature, x.shape, x.batched);
    kit::AddParameter(signature, Shape{x.shape[-1]}).name = "weight";
    signature->differentiable_inputs = signature->accumulates = 0b11;
    signature->backward_reads_inputs = fault_ == kReadsUndeclared ? 0b10 : 0b11;
    signature->backward_reads_outputs = 0;
    return {};
  }

  Status Forward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    last_x = x.f32();
    ++calls_;
    for (int i = 0; fault_ == kAllocates && i < 100; ++i) std::vector<float>(100).swap(memory_);
    for (int64_t i = 0; i < x.count(); ++i) y.f32()[i] = x.f32()[i] * Factor(call, i);
    if (fault_ == kOverrun) y.f32()[x.count()] = 0;
    return {};
  }

  Status Backward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &dx = call.input_grads[0], &dw = call.input_grads[1];
    const float* const dy = call.output_grads[0].f32();
    const float* const seen = fault_ == kSharedState ? last_x : x.f32();
    const bool adds = kit::Accumulates(call, 0) && fault_ != kIgnoresAccumulate;
    const float wrong = fault_ == kGradient ? 1.1f : 1.0f;
    for (int64_t i = 0; (dx.data != nullptr || fault_ == kIgnoresUnwanted) && i < x.count(); ++i) {
      dx.f32()[i] = (adds ? dx.f32()[i] : 0) + wrong * dy[i] * Factor(call, i);
    }
    if (dw.data == nullptr || (fault_ == kBreaksAtNoSamples && x.count() == 0)) return {};
    if (!kit::Accumulates(call, 1)) std::fill_n(dw.f32(), dw.count(), 0.0f);
    for (int64_t i = 0; i < x.count(); ++i) {
      const float weight = call.inputs[1].f32()[i % dw.count()];
      dw.f32()[i % dw.count()] += dy[i] * seen[i] * Factor(call, i) / weight;
    }
    if (fault_ == kWritesInput && x.count() > 0) x.f32()[0] = 0;
    return {};
  }

 private:
  float Factor(const OpCall& call, int64_t i) const {
    const TensorView &x = call.inputs[0], &weight = call.inputs[1];
    float factor = weight.f32()[i % weight.count()];
    if (fault_ == kDrifts && calls_ % 3 == 0) factor *= 1 + 0x1p-23f;
    if (fault_ == kMixesSamples) factor *= static_cast<float>(x.shape[0]);
    if (fault_ == kRandomByRank)
      factor *= (call.seed * 5 + static_cast<uint64_t>(i)) % 7 < 3 ? 2 : 1;
    return factor;
  }

  static thread_local const float* last_x;
  const Fault fault_;
  uint64_t calls_ = 0;
  std::vector<float> memory_;
};

thread_local const float* Product::last_x = nullptr;

class BadOps final : public OpLibraryBase {
 public:
  Device* device() noexcept override { return nullptr; }
  Status CreateOp(std::string_view name, const Options&, Op** out) noexcept override {
    const auto found =
        std::find_if(kOps.begin(), kOps.end(), [&](const OpName& op) { return op.view() == name; });
    *out = new Product(static_cast<Fault>(found - kOps.begin()));
    return {};
  }
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "bad_ops",
                    .version = "1.0.0",
                    .kind = PluginKind::kOps,
                    .doc = "ops that are wrong",
                    .create = kit::Create<BadOps>},
                   kOps, NoOptions());

}  // namespace engine::bad_ops
