// Parts to build models from. Compiled into the plugin that includes it and no part of the ABI: a
// model may as well be written without it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model.h"
#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/options.h"

namespace engine::kit {

// Shorthands for attributes: Int("units", 128), also for a list of one. `name`, `word` and `list`
// are borrowed.
inline OptionValue Int(std::string_view name, int64_t value) noexcept {
  return {.name = name, .type = OptionType::kInt, .integer = value};
}
inline OptionValue Ints(std::string_view name, std::span<const int64_t> list) noexcept {
  return {.name = name, .type = OptionType::kInts, .integers = list};
}
inline OptionValue Bool(std::string_view name, bool value) noexcept {
  return {.name = name, .type = OptionType::kBool, .integer = value ? 1 : 0};
}
inline OptionValue Float(std::string_view name, double value) noexcept {
  return {.name = name, .type = OptionType::kFloat, .number = value};
}
inline OptionValue Word(std::string_view name, std::string_view word) noexcept {
  return {.name = name, .type = OptionType::kEnum, .string = word};
}

// The first output of one more op.
inline Result<ModelValue> Apply(ModelBuilder& builder, std::string_view name, std::string_view op,
                                const std::vector<ModelValue>& inputs,
                                const std::vector<OptionValue>& attributes = {},
                                LayerSpec layer = {}) {
  layer.name = name;
  layer.op = op;
  layer.attributes = attributes;
  ModelValue output = 0;
  ENGINE_RETURN_IF_ERROR(builder.Apply(layer, inputs, {&output, 1}));
  return output;
}

// How many numbers the last layer gives for each target: one for each class, or, of targets that are
// numbers, as many as a sample has. kConfig, for `model`, unless a sample has one target.
inline Result<int64_t> OutputUnits(const ModelBuilder& builder, const char* model) {
  const ModelData data = builder.data();
  if (data.targets.size() == 1) {
    const SampleTensor& target = data.targets[0];
    return target.classes > 0 ? target.classes : target.shape.Count();
  }
  return Status::Error(StatusCode::kConfig,
                       "model.%s predicts one target, but a sample has %zu: choose another model",
                       model, data.targets.size());
}

// The option of models that leave their loss to the configuration.
constexpr OptionSpec LossOption() noexcept {
  return OpOption("loss", "softmax_cross_entropy",
                  "any op that is a loss, fed with what the model gives and the target");
}

// kConfig unless logits are one row of a number per class for every target, as a loss over classes
// needs.
inline Status CheckLogits(const TensorSpec& logits, const TensorSpec& target, int64_t classes) {
  const bool rows_fit = logits.shape.ndim > 0 && logits.shape.Count(0, -1) == target.shape.Count();
  if (rows_fit && logits.shape[-1] == classes &&
      (logits.dtype == DType::kFloat32 || logits.dtype == DType::kBFloat16)) {
    return {};
  }
  return Status::Error(
      StatusCode::kConfig,
      "model: the last layer gives %lld values in rows of %lld, but the data has %lld targets of "
      "%lld classes; end with linear { units: %lld }",
      static_cast<long long>(logits.shape.Count()),
      static_cast<long long>(logits.shape.ndim > 0 ? logits.shape[-1] : 1),
      static_cast<long long>(target.shape.Count()), static_cast<long long>(classes),
      static_cast<long long>(classes));
}

// Ends a model with one target: `prediction` is the output "logits", and the op `loss` compares it
// with the target.
inline Status PredictTarget(ModelBuilder& builder, ModelValue prediction, const std::string& loss) {
  const ModelData data = builder.data();
  const auto target = static_cast<ModelValue>(data.inputs.size());
  if (data.targets.size() == 1 && data.targets[0].classes > 0) {
    ENGINE_RETURN_IF_ERROR(
        CheckLogits(builder.Spec(prediction), builder.Spec(target), data.targets[0].classes));
  }
  ENGINE_RETURN_IF_ERROR(builder.Output("logits", prediction));
  if (data.with_loss == 0) return {};
  ENGINE_ASSIGN_OR_RETURN(const ModelValue value,
                          Apply(builder, "loss", loss, {prediction, target}));
  return builder.Loss(value);
}

// The image that is input 0, with channels last. kConfig, for `model`, when it is none.
inline Result<ModelValue> ChannelsLast(ModelBuilder& builder, const char* model) {
  const TensorSpec image = builder.Spec(0);
  if (image.dtype == DType::kFloat32 && image.shape.ndim == 4) {
    return Apply(builder, "", "to_channels_last", {0});
  }
  return Status::Error(StatusCode::kConfig,
                       "model.%s reads images of (channels, height, width): it needs such data, as "
                       "data { mnist { ... } } or data { cifar10 { ... } }",
                       model);
}

}  // namespace engine::kit
