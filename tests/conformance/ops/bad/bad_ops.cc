// The plugin bad_ops: y = x * weight, the weight as wide as a row, with the fault that the op's name says.
#include <algorithm>
#include <string_view>
#include <vector>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/op.h"

namespace engine::bad_ops {
namespace {

constexpr auto kOps = std::to_array<OpName>(
    {"good", "gradient", "overrun", "writes_input", "ignores_accumulate", "no_samples",
     "shared_state", "drifts", "reads_undeclared", "reads_unwritten", "random_by_rank",
     "mixes_samples", "ignores_unwanted", "refuses_silently", "allocates", "picky",
     // what it says of memory that may be shared
     "in_place", "passes_gradient", "gradient_in_place",
     // what comes or goes
     "missing_gradient", "constant_buffer", "own_statistics", "odd_gather", "evaluates_together",
     "mean_loss",
     // what does not fit together
     "says_five_outputs", "says_input_9", "says_it_adds", "says_in_place_of_9", "says_no_name",
     "says_not_trained", "says_batch", "says_loss"});

class Product final : public OpBase {
 public:
  explicit Product(std::string_view name) : name_(name) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    if (inputs.size() != 1 || inputs[0].dtype != DType::kFloat32 || inputs[0].shape.ndim < 2 ||
        (Is("picky") && inputs[0].shape[-1] != 11)) {
      return Status::Error(StatusCode::kConfig, "%s",
                           Is("refuses_silently") ? "" : "it needs float32 (B, ..., 11)");
    }
    OpSignature& says = *signature;
    const TensorSpec& x = inputs[0];
    if (Is("mean_loss")) {
      kit::AddOutput(signature, Shape{3}, 0);
    } else {
      kit::AddOutput(signature, x.shape, x.batched);
    }
    ParameterSpec& weight = kit::AddParameter(signature, Shape{x.shape[-1]});
    if (!Is("says_no_name")) weight.name = "weight";
    says.differentiable_inputs = says.accumulates = 0b11;
    says.backward_reads_inputs = Is("reads_undeclared") ? 0b10 : 0b11;
    says.backward_reads_outputs = 0;
    if (Is("reads_unwritten")) says.workspace_bytes = 1;
    if (Is("missing_gradient")) kit::AddOutput(signature, x.shape, x.batched);
    if (Is("constant_buffer")) {
      ParameterSpec& buffer = kit::AddParameter(signature, Shape{1});
      buffer.name = "buffer";
      buffer.trained = buffer.decay = 0;
    }
    if (Is("in_place")) says.in_place_of = 0;
    if (Is("passes_gradient")) says.passes_gradient = 1;
    if (Is("gradient_in_place")) says.gradient_in_place = 1;
    says.uses_replicas = Is("own_statistics") || Is("odd_gather") || Is("evaluates_together");
    says.is_loss = Is("mean_loss") || Is("says_loss");
    if (Is("says_five_outputs")) says.output_count = kMaxOpOutputs + 1;
    if (Is("says_input_9")) says.differentiable_inputs |= 1u << 9;
    if (Is("says_it_adds")) says.differentiable_inputs = 0b10;
    if (Is("says_in_place_of_9")) says.in_place_of = 9;
    if (Is("says_not_trained")) says.parameters[0].trained = says.parameters[0].decay = 0;
    if (Is("says_batch")) says.outputs[0].shape[0] = x.shape[0] + 1;
    return {};
  }

  Status Forward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    last_x = x.f32();
    ++calls_;
    for (int i = 0; Is("allocates") && i < 100; ++i) std::vector<float>(100).swap(memory_);
    if (call.replicas != nullptr) {
      std::vector<float> own(Is("odd_gather") && x.count() > 0 ? 2 : 1), all(own.size() * 3);
      ENGINE_RETURN_IF_ERROR(call.replicas->Gather(own.data(), static_cast<int64_t>(own.size()),
                                                   all.data(), call.stream));
    }
    const bool sums = Is("mean_loss");
    if (sums) std::fill_n(y.f32(), 3, 0.0f);
    for (const TensorView& output : call.outputs) {
      for (int64_t i = 0; i < x.count(); ++i) {
        const float product = x.f32()[i] * Factor(call, i);
        output.f32()[sums ? 0 : i] = sums ? y.f32()[0] + product / Terms(x) : product;
      }
    }
    if (sums) y.f32()[1] = static_cast<float>(x.count());
    if (Is("overrun")) y.f32()[x.count()] = 0;
    return {};
  }

  Status Backward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &dx = call.input_grads[0], &dw = call.input_grads[1];
    const float* const seen = Is("shared_state") ? last_x : x.f32();
    const bool adds = kit::Accumulates(call, 0) && !Is("ignores_accumulate");
    float wrong = Is("gradient") ? 1.1f : 1.0f;
    if (Is("reads_unwritten") && *static_cast<uint8_t*>(call.workspace) == 0x3e) wrong = 2;
    for (int64_t i = 0; (dx.data != nullptr || Is("ignores_unwanted")) && i < x.count(); ++i) {
      dx.f32()[i] = (adds ? dx.f32()[i] : 0) + wrong * Arriving(call, i) * Factor(call, i);
    }
    if (dw.data == nullptr || (Is("no_samples") && x.count() == 0)) return {};
    if (!kit::Accumulates(call, 1)) std::fill_n(dw.f32(), dw.count(), 0.0f);
    for (int64_t i = 0; i < x.count(); ++i) {
      const float weight = call.inputs[1].f32()[i % dw.count()];
      dw.f32()[i % dw.count()] += Arriving(call, i) * seen[i] * Factor(call, i) / weight;
    }
    if (Is("writes_input") && x.count() > 0) x.f32()[0] = 0;
    return {};
  }

 private:
  bool Is(std::string_view name) const { return name == name_; }

  static float Terms(const TensorView& x) { return static_cast<float>(x.count()) / 64; }
  // Of all outputs; a gradient that is missing counts as the other one.
  float Arriving(const OpCall& call, int64_t i) const {
    const Array<const TensorView>& dy = call.output_grads;
    if (Is("mean_loss")) return dy[0].f32()[0] / Terms(call.inputs[0]);
    float sum = 0;
    for (size_t k = 0; k < dy.size(); ++k) sum += dy[dy[k].data != nullptr ? k : 1 - k].f32()[i];
    return sum;
  }
  float Factor(const OpCall& call, int64_t i) const {
    const TensorView &x = call.inputs[0], &weight = call.inputs[1];
    float factor = weight.f32()[i % weight.count()];
    if (Is("drifts") && calls_ % 3 == 0) factor *= 1 + 0x1p-23f;
    if (Is("mixes_samples") || Is(call.training != 0 ? "own_statistics" : "evaluates_together")) {
      factor *= static_cast<float>(x.shape[0]);
    }
    if (Is("random_by_rank") && (call.seed * 5 + static_cast<uint64_t>(i)) % 7 < 3) factor *= 2;
    return factor;
  }

  inline static thread_local const float* last_x = nullptr;
  const std::string_view name_;
  uint64_t calls_ = 0;
  std::vector<float> memory_;
};

class BadOps final : public OpLibraryBase {
 public:
  Device* device() noexcept override { return nullptr; }
  Status CreateOp(std::string_view name, const Options&, Op** out) noexcept override {
    const auto is_it = [&](const OpName& op) { return op.view() == name; };
    *out = new Product(std::find_if(kOps.begin(), kOps.end(), is_it)->view());
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
