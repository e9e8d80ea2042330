// tanh_ops: the op `scaled_tanh`, y = amplitude * tanh(slope * x) (LeCun et al., "Efficient
// BackProp", 1998, section 4.4).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>

#include "engine/plugin.h"

namespace {

class ScaledTanh final : public engine::OpBase {
 public:
  explicit ScaledTanh(const engine::Options& attributes) noexcept
      : amplitude_(static_cast<float>(attributes.Float("amplitude"))),
        slope_(static_cast<float>(attributes.Float("slope"))) {}

  engine::Status Infer(std::span<const engine::TensorSpec> inputs,
                       engine::OpSignature* signature) noexcept override {
    if (inputs.size() != 1 || inputs[0].dtype != engine::DType::kFloat32) {
      return engine::Status::Error(engine::StatusCode::kConfig,
                                   "scaled_tanh takes one float32 input");
    }
    signature->output_count = 1;
    signature->outputs[0] = inputs[0];
    signature->differentiable_inputs = 1;
    signature->backward_reads_inputs = 0;
    signature->backward_reads_outputs = 1;
    signature->accumulates = 1;
    return {};
  }

  engine::Status Forward(const engine::OpCall& call) noexcept override {
    const float* x = call.inputs[0].f32();
    float* y = call.outputs[0].f32();
    const int64_t count = call.inputs[0].count();
    for (int64_t i = 0; i < count; ++i) y[i] = amplitude_ * std::tanh(slope_ * x[i]);
    return {};
  }

  // dy/dx = amplitude * slope * (1 - tanh^2) = slope * (amplitude - y^2 / amplitude)
  engine::Status Backward(const engine::OpCall& call) noexcept override {
    const float* y = call.outputs[0].f32();
    const float* dy = call.output_grads[0].f32();
    float* dx = call.input_grads[0].f32();
    const int64_t count = call.outputs[0].count();
    const bool add = (call.accumulate & 1) != 0;
    for (int64_t i = 0; i < count; ++i) {
      const float gradient = dy[i] * slope_ * (amplitude_ - y[i] * y[i] / amplitude_);
      dx[i] = add ? dx[i] + gradient : gradient;
    }
    return {};
  }

 private:
  const float amplitude_;
  const float slope_;
};

class TanhOps final : public engine::OpLibraryBase {
 public:
  // No device of its own: these ops run on the CPU device of another op plugin.
  engine::Device* device() noexcept override { return nullptr; }

  engine::Status CreateOp(std::string_view, const engine::Options& attributes,
                          engine::Op** out) noexcept override {
    *out = new (std::nothrow) ScaledTanh(attributes);
    if (*out) return {};
    return engine::Status::Error(engine::StatusCode::kResourceExhausted, "no memory");
  }
};

engine::StatusValue Create(engine::Host& host, const engine::Options&,
                           engine::Object** out) noexcept {
  const engine::Device* device = host.device();
  if (device && std::strcmp(device->type(), "cpu") != 0) {
    return engine::Status::Error(engine::StatusCode::kUnsupported,
                                 "tanh_ops computes in CPU memory, but the device is '%s'",
                                 device->type());
  }
  *out = new (std::nothrow) TanhOps;
  if (*out) return {};
  return engine::Status::Error(engine::StatusCode::kResourceExhausted, "no memory");
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    engine::DescribePlugin({.name = "tanh_ops",
                            .version = "1.0.0",
                            .kind = engine::PluginKind::kOps,
                            .doc = "the activation scaled_tanh",
                            .create = Create},
                           std::array{engine::OpName("scaled_tanh")},
                           std::array{engine::OptionSpec{.scope = "scaled_tanh",
                                                         .name = "amplitude",
                                                         .type = engine::OptionType::kFloat,
                                                         .default_value = "1.7159",
                                                         .min = 0.001,
                                                         .max = 1000,
                                                         .doc = "limit of the output"},
                                      engine::OptionSpec{.scope = "scaled_tanh",
                                                         .name = "slope",
                                                         .type = engine::OptionType::kFloat,
                                                         .default_value = "0.6666667",
                                                         .min = 0.001,
                                                         .max = 1000,
                                                         .doc = "factor of the input"}});
