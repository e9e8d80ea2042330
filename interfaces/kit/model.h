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
