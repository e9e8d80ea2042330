// my_plugin: the op of the same name, y = 1.7159 tanh(slope x) (LeCun et al., "Efficient BackProp",
// 1998, section 4.4).
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/op.h"
#include "kit/op_library.h"
#include "kit/op_shapes.h"
#include "kit/options.h"

namespace engine {
namespace {

constexpr float kAmplitude = 1.7159f;

struct Context {
  const char* name = "";  // of the op
};

class ScaledTanh final : public OpBase {
 public:
  // Attributes that the descriptor below publishes are always there, and within their ranges.
  ScaledTanh(const Context& context, const Options& attributes) noexcept
      : name_(context.name), slope_(static_cast<float>(attributes.Float("slope"))) {}

  // What the op makes of its inputs, and what Backward reads. Here: one output like the one input,
  // and the output alone. Parameters, saved bytes and the like are fields of `signature`.
  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferFunction({name_, DType::kFloat32, inputs, signature}, /*reads_output=*/true);
  }

  Status Forward(const OpCall& call) noexcept override {
    const float* const x = call.inputs[0].f32();
    float* const y = call.outputs[0].f32();
    const int64_t count = call.inputs[0].count();
    for (int64_t i = 0; i < count; ++i) y[i] = kAmplitude * std::tanh(slope_ * x[i]);
    return {};
  }

  // dy/dx = slope (amplitude - y^2 / amplitude)
  Status Backward(const OpCall& call) noexcept override {
    const float* const y = call.outputs[0].f32();
    const float* const dy = call.output_grads[0].f32();
    float* const dx = call.input_grads[0].f32();
    const int64_t count = call.outputs[0].count();
    const bool add = kit::Accumulates(call, 0);
    for (int64_t i = 0; i < count; ++i) {
      const float gradient = dy[i] * slope_ * (kAmplitude - y[i] * y[i] / kAmplitude);
      dx[i] = add ? dx[i] + gradient : gradient;
    }
    return {};
  }

 private:
  const char* const name_;
  const float slope_;
};

constexpr kit::OpFactory<Context> kMakeScaledTanh = kit::NewOp<ScaledTanh, Context>;
constexpr kit::OpEntry<Context> kOps[] = {{"my_plugin", &kMakeScaledTanh}};

class Library final : public OpLibraryBase {
 public:
  // No device of its own: these ops work on the CPU device of another op plugin.
  Device* device() noexcept override { return nullptr; }
  Status CreateOp(std::string_view name, const Options& attributes, Op** out) noexcept override {
    return kit::CreateOp("my_plugin", kOps, name, Context{}, attributes, out);
  }
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "my_plugin",
     .version = "0.1.0",
     .kind = PluginKind::kOps,
     .doc = "a scaled hyperbolic tangent",
     .create = kit::CreateOnCpu<Library>},
    kit::NamesOf(kOps),
    std::array{kit::Attribute(
        "my_plugin", kit::FloatOption("slope", "0.6666667", 0.001, 1000, "factor of the input"))});

}  // namespace engine
