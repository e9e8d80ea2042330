// Options of a plugin, a line each.
#pragma once

#include "engine/options.h"

namespace engine::kit {

using OptionName = FixedString<32>;
using OptionDefault = FixedString<64>;
using OptionDoc = FixedString<160>;

constexpr OptionSpec BoolOption(OptionName name, OptionDefault value, OptionDoc doc) noexcept {
  return {.name = name, .type = OptionType::kBool, .default_value = value, .doc = doc};
}

// Of type kInt, kFloat or kInts, in [min, max].
constexpr OptionSpec NumberOption(OptionType type, OptionName name, OptionDefault value, double min,
                                  double max, OptionDoc doc) noexcept {
  return {.name = name, .type = type, .default_value = value, .min = min, .max = max, .doc = doc};
}

constexpr OptionSpec IntOption(OptionName name, OptionDefault value, double min, double max,
                               OptionDoc doc) noexcept {
  return NumberOption(OptionType::kInt, name, value, min, max, doc);
}

constexpr OptionSpec IntsOption(OptionName name, OptionDefault value, double min, double max,
                                OptionDoc doc) noexcept {
  return NumberOption(OptionType::kInts, name, value, min, max, doc);
}

constexpr OptionSpec FloatOption(OptionName name, OptionDefault value, double min, double max,
                                 OptionDoc doc) noexcept {
  return NumberOption(OptionType::kFloat, name, value, min, max, doc);
}

// An empty default makes an empty string, not a required one.
constexpr OptionSpec StringOption(OptionName name, OptionDefault value, OptionDoc doc) noexcept {
  return {.name = name, .type = OptionType::kString, .default_value = value, .doc = doc};
}

// One of `choices`, words separated by '|'.
constexpr OptionSpec EnumOption(OptionName name, OptionDefault value, FixedString<96> choices,
                                OptionDoc doc) noexcept {
  return {.name = name,
          .type = OptionType::kEnum,
          .default_value = value,
          .choices = choices,
          .doc = doc};
}

constexpr OptionSpec OpOption(OptionName name, OptionDefault value, OptionDoc doc) noexcept {
  return {.name = name, .type = OptionType::kOp, .default_value = value, .doc = doc};
}

// The name of another plugin, of a `kind` that InnerPlugins makes.
constexpr OptionSpec PluginOption(OptionName name, OptionDefault value, FixedString<96> kind,
                                  OptionDoc doc) noexcept {
  return {.name = name,
          .type = OptionType::kPlugin,
          .default_value = value,
          .choices = kind,
          .doc = doc};
}

// The same as an attribute of `op`, in the descriptor of its library.
constexpr OptionSpec Attribute(OptionName op, OptionSpec option) noexcept {
  option.scope = op;
  return option;
}

// A file or a folder.
enum class Path { kOptional, kRequired };
constexpr OptionSpec PathOption(OptionName name, Path path, OptionDoc doc) noexcept {
  const double least = path == Path::kRequired ? 1 : 0;
  return {.name = name, .type = OptionType::kString, .min = least, .max = 4096, .doc = doc};
}

}  // namespace engine::kit
